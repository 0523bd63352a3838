//! `POST /v1/audio/transcriptions` and `POST /v1/audio/translations`.

use std::{io::Cursor, ops::ControlFlow};

use axum::{body::Bytes, http::header::CONTENT_TYPE, response::Response};
use narthex_audio::{
    Decoder,
    transcript::{Granularities, Task, TranscriptFormat},
};
use narthex_gateway::{
    Cancel,
    request::{ActivitySettings, BeamSearch, TranscriptionRequest},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DEFAULT, job::TranscriptionJob, stream};
use crate::{
    app::App,
    error::ApiError,
    http::budget::Reservation,
    protocol::{
        blocking::run_encoder,
        body::FormBody,
        device_headers::with_device_headers,
        ignored::IgnoredParameters,
        multipart::{self, Form, FromForm},
    },
};

/// Settings of `chunking_strategy`, which OpenAI's clients send in brackets.
const STRATEGY: &str = "chunking_strategy";

/// Settings of OpenAI's voice activity detection, where a request leaves them open.
const OPENAI_ACTIVITY: ActivitySettings = ActivitySettings { threshold: 0.5, pause_ms: 200, padding_ms: 300 };

/// Fields of the form.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are only documented; a form has no types")]
pub(crate) struct TranscriptionForm {
    /// The file: wav, aiff, flac, mp3, ogg, opus, m4a, mp4, aac, webm or mkv.
    #[schemars(extend("format" = "binary"))]
    file: String,
    model: String,
    /// Language of the speech: a code such as `en`, or an English name.
    language: Option<String>,
    /// Text before the speech.
    prompt: Option<String>,
    response_format: Option<TranscriptFormat>,
    /// 0 to 1.
    temperature: Option<f32>,
    /// Number of beams of Whisper's search at temperature 0; `num_beams` is another name.
    beam_size: Option<usize>,
    /// Number of complete results after which the search ends, divided by the number of beams.
    patience: Option<f32>,
    /// Exponent of the length in the score of a result, 0 to 1.
    length_penalty: Option<f32>,
    /// Parts with times, for `verbose_json`.
    #[schemars(rename = "timestamp_granularities[]")]
    timestamp_granularities: Option<Vec<Granularity>>,
    /// `logprobs`: the probabilities of the tokens, for `json` and for events.
    #[schemars(rename = "include[]")]
    include: Option<Vec<String>>,
    /// Sends the text in server-sent events while it is recognised.
    stream: Option<bool>,
    /// Finds speech first, and transcribes only that: `auto`, or an object of the type `server_vad` with `threshold`,
    /// `prefix_padding_ms` and `silence_duration_ms`.
    chunking_strategy: Option<String>,
    /// Finds speech first, with the settings of faster-whisper.
    vad_filter: Option<bool>,
}

/// The object form of `chunking_strategy`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerVad {
    r#type: String,
    threshold: Option<f32>,
    prefix_padding_ms: Option<u32>,
    silence_duration_ms: Option<u32>,
}

impl ServerVad {
    fn settings(&self) -> Result<ActivitySettings, ApiError> {
        if self.r#type != "server_vad" {
            return Err(multipart::invalid(STRATEGY, "the type server_vad", &self.r#type));
        }
        Ok(ActivitySettings {
            threshold: self.threshold.unwrap_or(OPENAI_ACTIVITY.threshold),
            pause_ms: self.silence_duration_ms.unwrap_or(OPENAI_ACTIVITY.pause_ms),
            padding_ms: self.prefix_padding_ms.unwrap_or(OPENAI_ACTIVITY.padding_ms),
        })
    }
}

/// Takes the settings of voice activity detection: those of faster-whisper, or OpenAI's as a text, as an object in JSON,
/// or as fields in brackets.
fn activity(form: &mut Form) -> Result<Option<ActivitySettings>, ApiError> {
    let filters = form.value("vad_filter", "true or false")?.unwrap_or(false);
    let usual = filters.then(ActivitySettings::default);
    let parts = ServerVad {
        r#type: form.text("chunking_strategy[type]")?.unwrap_or_default(),
        threshold: form.value("chunking_strategy[threshold]", "a number from 0 to 1")?,
        prefix_padding_ms: form.value("chunking_strategy[prefix_padding_ms]", "milliseconds")?,
        silence_duration_ms: form.value("chunking_strategy[silence_duration_ms]", "milliseconds")?,
    };
    match form.text(STRATEGY)?.as_deref().map(str::trim) {
        None if parts.r#type.is_empty() => Ok(usual),
        None => parts.settings().map(Some),
        Some("auto") => Ok(Some(ActivitySettings::default())),
        Some(text) => {
            let expected = "auto, or an object with the type server_vad";
            let parsed: ServerVad =
                serde_json::from_str(text).map_err(|_| multipart::invalid(STRATEGY, expected, text))?;
            parsed.settings().map(Some)
        }
    }
}

/// Returns whether a request asks for the probabilities of tokens.
fn logprobs(included: &[String], format: TranscriptFormat) -> Result<bool, ApiError> {
    let mut named = included.iter().filter(|part| !part.is_empty()).peekable();
    if named.peek().is_some() && format != TranscriptFormat::Json {
        let message = format!("include: logprobs need response_format json, found {}", format.name());
        return Err(ApiError::bad_request("include", message));
    }
    match named.find(|part| *part != "logprobs") {
        Some(unknown) => Err(multipart::invalid("include", "logprobs", unknown)),
        None => Ok(included.iter().any(|part| !part.is_empty())),
    }
}

/// Takes the settings of beam search, with the names of openai-whisper, faster-whisper and whisper.cpp, or those of
/// transformers.
fn beams(form: &mut Form) -> Result<Option<BeamSearch>, ApiError> {
    let size = form.value("beam_size", "a number of beams")?;
    let other = form.value("num_beams", "a number of beams")?;
    if size.is_some() && other.is_some() {
        return Err(ApiError::bad_request("num_beams", "num_beams: beam_size is the same; send one of both"));
    }
    let settings = size.or(other).map(BeamSearch::new);
    let patience = form.value("patience", "a number above 0")?;
    let length_penalty = form.value("length_penalty", "a number from 0 to 1")?;
    match settings {
        Some(settings) => Ok(Some(BeamSearch {
            patience: patience.unwrap_or(settings.patience),
            length_penalty,
            ..settings
        })),
        None => {
            let given = [("patience", patience), ("length_penalty", length_penalty)];
            match given.into_iter().find(|(_, value)| value.is_some()) {
                Some((name, _)) => Err(ApiError::bad_request(name, format!("{name} needs beam_size"))),
                None => Ok(None),
            }
        }
    }
}

/// Kind of parts with times.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "the values are only documented")]
enum Granularity {
    Segment,
    Word,
}

/// A transcript as JSON.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "the answers are only documented")]
pub(crate) enum TranscriptObject {
    /// The format `verbose_json`.
    Verbose(narthex_audio::transcript::VerboseTranscript),
    /// The format `json`.
    Plain(narthex_audio::transcript::PlainTranscript),
}

/// A form that was read and checked.
pub(crate) struct ParsedTranscription {
    file: Bytes,
    request: TranscriptionRequest,
    format: TranscriptFormat,
    parts: Granularities,
    is_stream: bool,
}

impl FromForm for ParsedTranscription {
    fn read(mut form: Form, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let file = form.file("file")?;
        let model = form.text("model")?.ok_or_else(|| ApiError::required("model"))?;
        let format = format(form.text("response_format")?)?;
        let parts = granularities(&form.list("timestamp_granularities")?, format)?;
        let request = TranscriptionRequest {
            language: form.text("language")?,
            prompt: form.text("prompt")?,
            temperature: form.value("temperature", "a number from 0 to 1")?,
            beams: beams(&mut form)?,
            words: parts.words,
            logprobs: logprobs(&form.list("include")?, format)?,
            vad: activity(&mut form)?,
            ..TranscriptionRequest::new(model_of(&model))
        };
        let is_stream = form.value("stream", "true or false")?.unwrap_or(false);
        form.ignore_rest(&[], ignored)?;

        if is_stream && !matches!(format, TranscriptFormat::Json | TranscriptFormat::Text) {
            let message = format!(
                "stream: expected response_format json or text, found {}; leave one of both out",
                format.name()
            );
            return Err(ApiError::bad_request("stream", message));
        }
        Ok(Self { file, request, format, parts, is_stream })
    }
}

/// Returns the model with this name.
pub(crate) fn model_of(name: &str) -> &str {
    if name == DEFAULT { TranscriptionRequest::DEFAULT_MODEL } else { name }
}

fn format(name: Option<String>) -> Result<TranscriptFormat, ApiError> {
    let Some(name) = name else { return Ok(TranscriptFormat::default()) };
    TranscriptFormat::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
        let expected = TranscriptFormat::ALL.map(TranscriptFormat::name).join(", ");
        multipart::invalid("response_format", &format!("one of {expected}"), &name)
    })
}

/// Returns the parts with times. Segments are the default.
fn granularities(names: &[String], format: TranscriptFormat) -> Result<Granularities, ApiError> {
    let param = "timestamp_granularities";
    if let Some(unknown) = names.iter().find(|name| !matches!(name.as_str(), "segment" | "word")) {
        return Err(multipart::invalid(param, "segment or word", unknown));
    }
    let has = |name: &str| names.iter().any(|listed| listed == name);
    if has("word") && format != TranscriptFormat::VerboseJson {
        let found = format.name();
        let message = format!("{param}: words need response_format verbose_json, found {found}");
        return Err(ApiError::bad_request(param, message));
    }
    Ok(Granularities { segments: names.is_empty() || has("segment"), words: has("word") })
}

/// Transcribes a file in its language.
pub(crate) async fn transcribe(app: App, body: FormBody<ParsedTranscription>) -> Result<Response, ApiError> {
    create(app, body, Task::Transcribe).await
}

/// Translates speech to English.
pub(crate) async fn translate(app: App, body: FormBody<ParsedTranscription>) -> Result<Response, ApiError> {
    create(app, body, Task::Translate).await
}

async fn create(app: App, body: FormBody<ParsedTranscription>, task: Task) -> Result<Response, ApiError> {
    let FormBody { request, ignored, reservation } = body;
    let ParsedTranscription { file, mut request, format, parts, is_stream } = request;
    request.task = task;
    let file = check(&app, file).await?;
    if request.vad.is_some() {
        let gateway = app.gateway.clone();
        app.shared.jobs.run(move || gateway.fetch_speech_detector_for_request(&Cancel::new())).await?;
    }
    let job = TranscriptionJob { file, request, meter: app.meter.clone() };

    let response = if is_stream {
        stream::respond(&app, job, reservation).await?
    } else {
        respond(&app, job, reservation, Written { format, parts }).await?
    };
    Ok(ignored.name_in(response))
}

/// Form of the answer.
struct Written {
    format: TranscriptFormat,
    parts: Granularities,
}

/// Opens a file, so that an unusable one is refused before its model is loaded.
async fn check(app: &App, file: Bytes) -> Result<Bytes, ApiError> {
    let check = app.shared.jobs.run(move || match Decoder::open(Cursor::new(file.clone())) {
        Ok(_) => Ok(file),
        Err(error) => Err(ApiError::bad_request("file", error.to_string())),
    });
    check.await
}

async fn respond(
    app: &App,
    job: TranscriptionJob,
    body: Reservation,
    written: Written,
) -> Result<Response, ApiError> {
    let model = job.request.model.clone();
    let text = run_encoder(
        app,
        &model,
        body.into(),
        |_| 0,
        move |model, cancel| {
            let transcript = job.run(model, cancel, |_| ControlFlow::Continue(()))?;
            Ok((transcript.write(written.format, written.parts), model.ran_on()))
        },
    );
    let (text, ran_on) = text.await?;
    Ok(with_device_headers(&ran_on, ([(CONTENT_TYPE, written.format.media_type())], text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &[(&str, &str)]) -> Result<ParsedTranscription, ApiError> {
        let part = |(name, data): &(&str, &str)| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{data}\r\n")
        };
        let parts: String = [("file", "RIFF"), ("model", "m")].iter().chain(fields).map(part).collect();
        let form = Form::parse(format!("{parts}--b--").into(), "b")?;
        ParsedTranscription::read(form, &mut IgnoredParameters::default())
    }

    #[test]
    fn the_fields_of_a_request_are_read() {
        let parsed = read(&[
            ("language", "de"),
            ("prompt", "Narthex"),
            ("temperature", "0.25"),
            ("beam_size", "5"),
            ("patience", "2"),
            ("response_format", "verbose_json"),
            ("timestamp_granularities[]", "word"),
            ("vad_filter", "true"),
        ]);
        let parsed = parsed.unwrap();
        let expect = TranscriptionRequest {
            language: Some("de".to_owned()),
            prompt: Some("Narthex".to_owned()),
            temperature: Some(0.25),
            beams: Some(BeamSearch { patience: 2.0, ..BeamSearch::new(5) }),
            words: true,
            vad: Some(ActivitySettings::default()),
            ..TranscriptionRequest::new("m")
        };
        assert_eq!(parsed.request, expect);
        assert_eq!(parsed.parts, Granularities { segments: false, words: true });
        assert_eq!(read(&[]).unwrap().parts, Granularities { segments: true, words: false });
        assert_eq!(model_of("default"), TranscriptionRequest::DEFAULT_MODEL);
        assert_eq!(model_of("whisper:tiny"), "whisper:tiny");
    }

    #[test]
    fn probabilities_are_read_as_a_list() {
        let asks = |fields: &[(&str, &str)]| read(fields).unwrap().request.logprobs;
        assert!(asks(&[("include[]", "logprobs")]) && asks(&[("include", "logprobs"), ("stream", "true")]));
        assert!(!asks(&[]) && !asks(&[("include[]", "")]));
    }

    #[test]
    fn speech_is_found_first_if_a_request_asks_for_it() {
        let check = |fields: &[(&str, &str)], expect: Option<[f32; 3]>| {
            let found = read(fields).unwrap().request.vad;
            let found = found.map(|vad| [vad.threshold, vad.pause_ms as f32, vad.padding_ms as f32]);
            assert_eq!(found, expect, "{fields:?}");
        };
        check(&[], None);
        check(&[("vad_filter", "false")], None);
        check(&[("chunking_strategy", "auto")], Some([0.5, 2000.0, 400.0]));
        let json = r#"{"type": "server_vad", "threshold": 0.25, "silence_duration_ms": 500}"#;
        check(&[("chunking_strategy", json)], Some([0.25, 500.0, 300.0]));
        let bracketed =
            [("chunking_strategy[type]", "server_vad"), ("chunking_strategy[prefix_padding_ms]", "100")];
        check(&bracketed, Some([0.5, 200.0, 100.0]));
    }

    #[test]
    fn invalid_fields_are_named() {
        let check = |fields: &[(&str, &str)], expect: &str| {
            let message = read(fields).err().unwrap().message();
            assert!(message.contains(expect), "{message}");
        };
        check(&[("response_format", "mp4")], "one of json, verbose_json, text, srt, vtt, found \"mp4\"");
        check(&[("timestamp_granularities[]", "line")], "expected segment or word, found \"line\"");
        check(
            &[("timestamp_granularities[]", "word")],
            "words need response_format verbose_json, found json",
        );
        check(&[("temperature", "x")], "a number from 0 to 1");
        check(&[("beam_size", "-1")], "expected a number of beams");
        check(&[("beam_size", "2"), ("num_beams", "2")], "send one of both");
        check(&[("length_penalty", "0.5")], "length_penalty needs beam_size");
        check(&[("best_of", "5")], "best_of is not supported");
        check(&[("stream", "maybe")], "expected true or false");
        check(&[("stream", "true"), ("response_format", "srt")], "expected response_format json or text");
        check(&[("include[]", "words")], "expected logprobs, found \"words\"");
        check(
            &[("include[]", "logprobs"), ("response_format", "srt")],
            "need response_format json, found srt",
        );
        check(&[("diarize", "true")], "diarize is not supported");
        check(&[("chunking_strategy", "none")], "expected auto, or an object");
        check(&[("chunking_strategy", r#"{"type": "client_vad"}"#)], "expected the type server_vad");
        check(&[("vad_filter", "x")], "expected true or false");
    }
}
