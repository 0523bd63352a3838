//! `POST /v1/audio/transcriptions` and `POST /v1/audio/translations`.

use std::{io::Cursor, ops::ControlFlow};

use axum::{body::Bytes, http::header::CONTENT_TYPE, response::Response};
use narthex_audio::{
    Decoder,
    transcript::{Granularities, Task, TranscriptFormat},
};
use narthex_gateway::request::TranscriptionRequest;
use schemars::JsonSchema;
use serde::Serialize;

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

/// Parameters of OpenAI's API for models that do not exist here.
const HINTS: &[&str] = &["chunking_strategy"];

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
    /// Parts with times, for `verbose_json`.
    #[schemars(rename = "timestamp_granularities[]")]
    timestamp_granularities: Option<Vec<Granularity>>,
    /// Sends the text in server-sent events while it is recognised.
    stream: Option<bool>,
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
            words: parts.words,
            ..TranscriptionRequest::new(model_of(&model))
        };
        let is_stream = form.value("stream", "true or false")?.unwrap_or(false);
        if form.list("include")?.iter().any(|part| !part.is_empty()) {
            return Err(ApiError::unsupported("include"));
        }
        form.ignore_rest(HINTS, ignored)?;

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
fn model_of(name: &str) -> &str {
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
            ("response_format", "verbose_json"),
            ("timestamp_granularities[]", "word"),
            ("chunking_strategy", "auto"),
        ]);
        let parsed = parsed.unwrap();
        let expect = TranscriptionRequest {
            language: Some("de".to_owned()),
            prompt: Some("Narthex".to_owned()),
            temperature: Some(0.25),
            words: true,
            ..TranscriptionRequest::new("m")
        };
        assert_eq!(parsed.request, expect);
        assert_eq!(parsed.parts, Granularities { segments: false, words: true });
        assert_eq!(read(&[]).unwrap().parts, Granularities { segments: true, words: false });
        assert_eq!(model_of("default"), TranscriptionRequest::DEFAULT_MODEL);
        assert_eq!(model_of("whisper:tiny"), "whisper:tiny");
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
        check(&[("stream", "maybe")], "expected true or false");
        check(&[("stream", "true"), ("response_format", "srt")], "expected response_format json or text");
        check(&[("include[]", "logprobs")], "include is not supported");
        check(&[("diarize", "true")], "diarize is not supported");
    }
}
