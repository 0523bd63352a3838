//! `POST /v1/audio/speech`: a text is spoken, and each sentence leaves as soon as it is computed.

use std::{io, ops::ControlFlow, pin::Pin};

use axum::{
    body::{Body as HttpBody, Bytes},
    http::header::CONTENT_TYPE,
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{Stream, StreamExt};
use narthex_audio::{SoundFormat, StreamEncoder};
use narthex_gateway::{Cancel, Error, ReadyModel, request::SpeechRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::DEFAULT;
use crate::{
    app::App,
    error::{ApiError, OpenAiErrorBody},
    http::budget::Reservation,
    protocol::{
        blocking::CancelOnDrop,
        body::{Body, FromBody},
        device_headers::with_device_headers,
        fields::BodyFields,
        hints,
        ignored::IgnoredParameters,
        loading, multipart,
    },
};

/// Maximum characters of a text, as in OpenAI's API.
const MAX_CHARACTERS: usize = 4_096;

/// Memory that is reserved for each character of a text at the usual speed: 0.1 seconds of 16-bit samples.
const CHARACTER_BYTES: usize = 4_800;

/// Characters that a key is charged as one token.
const TOKEN_CHARACTERS: usize = 4;

/// Body of the request.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SpeechBody {
    model: String,
    /// The text, up to 4,096 characters.
    input: String,
    /// Name of a voice of the model; by default its first one.
    voice: Option<String>,
    /// 0.25 to 4.
    speed: Option<f32>,
    /// `wav` (the default), `pcm` (16-bit samples of 24 kHz), `flac` or `opus`.
    response_format: Option<String>,
    stream_format: Option<StreamFormat>,
    /// The same seed gives the same speech.
    seed: Option<u64>,
}

/// Form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum StreamFormat {
    /// The file.
    #[default]
    Audio,
    /// Server-sent events with parts of the file.
    Sse,
}

/// A body that was read and checked.
pub(crate) struct ParsedSpeech {
    request: SpeechRequest,
    format: SoundFormat,
    stream_format: StreamFormat,
}

impl FromBody for ParsedSpeech {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body: SpeechBody = fields.read()?;
        hints::ignore(fields, &[], ignored)?;
        let characters = body.input.chars().count();
        if characters > MAX_CHARACTERS {
            let expected = format!("at most {MAX_CHARACTERS} characters");
            return Err(ApiError::bad_request(
                "input",
                format!("input: expected {expected}, found {characters}; divide the text"),
            ));
        }
        let format = body.response_format.as_deref().map_or(Ok(SoundFormat::Wav), sound_format)?;
        let model = if body.model == DEFAULT { SpeechRequest::DEFAULT_MODEL.to_owned() } else { body.model };
        let request = SpeechRequest {
            voice: body.voice.filter(|voice| voice != DEFAULT),
            speed: body.speed.unwrap_or(1.0),
            seed: body.seed,
            ..SpeechRequest::new(model, body.input)
        };
        Ok(Self { request, format, stream_format: body.stream_format.unwrap_or_default() })
    }
}

fn sound_format(name: &str) -> Result<SoundFormat, ApiError> {
    SoundFormat::from_name(name).ok_or_else(|| {
        let expected = SoundFormat::ALL.map(SoundFormat::name).join(", ");
        multipart::invalid("response_format", &format!("one of {expected}"), name)
    })
}

/// An event of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub(crate) enum SpeechPart {
    /// A part of the file.
    #[serde(rename = "speech.audio.delta")]
    Delta {
        /// The bytes in base64.
        audio: String,
    },
    /// The end of the file.
    #[serde(rename = "speech.audio.done")]
    Done { usage: SpeechUsage },
}

/// Tokens that the caller's key is charged.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct SpeechUsage {
    input_tokens: usize,
    output_tokens: usize,
    total_tokens: usize,
}

impl SpeechUsage {
    fn of(text: &str) -> Self {
        let tokens = text.chars().count().div_ceil(TOKEN_CHARACTERS);
        Self { input_tokens: tokens, output_tokens: 0, total_tokens: tokens }
    }
}

/// Parts of a file, or the error that ends it.
type Parts = Pin<Box<dyn Stream<Item = Result<Bytes, ApiError>> + Send>>;

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedSpeech>) -> Result<Response, ApiError> {
    let Body { request: ParsedSpeech { request, format, stream_format }, ignored, reservation } = body;
    let usage = SpeechUsage::of(&request.text);
    let model = loading::wait(&app, &request.model).await?;
    app.answer.reserve(answer_bytes(&request)).await?;
    app.meter.tokens(usage.total_tokens);

    let ran_on = model.ran_on();
    let parts = start(&app, SpeechJob { model, request, format }, reservation).await?;
    let response = match stream_format {
        StreamFormat::Audio => file(parts, format),
        StreamFormat::Sse => events(parts, usage),
    };
    Ok(ignored.name_in(with_device_headers(&ran_on, response)))
}

/// Returns an upper bound of the memory of an answer.
fn answer_bytes(request: &SpeechRequest) -> usize {
    let usual = request.text.chars().count().saturating_mul(CHARACTER_BYTES);
    (usual as f64 / f64::from(request.speed.clamp(0.25, 4.0))) as usize
}

/// The work of a request.
struct SpeechJob {
    model: ReadyModel,
    request: SpeechRequest,
    format: SoundFormat,
}

impl SpeechJob {
    /// Speaks the text, and passes the parts of the file to `send`, which returns false if nobody reads them.
    fn run(&self, cancel: &Cancel, mut send: impl FnMut(Bytes) -> bool) -> Result<(), Error> {
        let mut encoder = StreamEncoder::new(self.format);
        let mut failure = None;
        let spoken = self.model.speak(
            &self.request,
            &mut |event| match encoder.push(event.sample_rate, &event.samples) {
                Ok(bytes) => match bytes.is_empty() || send(bytes.into()) {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                },
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            },
            cancel,
        );

        if let Some(error) = failure {
            return Err(error.into());
        }
        spoken?;
        send(encoder.finish()?.into());
        Ok(())
    }
}

/// Starts a job, and returns the parts of its file once the first one is there, so that a request that fails at once has
/// the status of its error. Dropping the parts cancels the job.
///
/// The channel is unbounded, because a voice must not wait for a slow client. The memory of the file was reserved.
async fn start(app: &App, job: SpeechJob, body: Reservation) -> Result<Parts, ApiError> {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let cancel = Cancel::new();
    let guard = CancelOnDrop(cancel.clone());
    let jobs = app.shared.jobs.clone();
    tokio::spawn(async move {
        let parts = sender.clone();
        let run = jobs.run_encoder(move || {
            let _body = body;
            job.run(&cancel, |bytes| parts.send(Ok(bytes)).is_ok())
        });
        if let Err(error) = run.await {
            // The receiver is gone if the client has disconnected.
            let _ = sender.send(Err(error));
        }
    });

    let first = receiver.recv().await.unwrap_or_else(|| Err(ApiError::panicked()))?;
    let rest = futures::stream::unfold((receiver, guard), |(mut receiver, guard)| async move {
        let part = receiver.recv().await?;
        Some((part, (receiver, guard)))
    });
    Ok(futures::stream::iter([Ok(first)]).chain(rest).boxed())
}

/// Returns the file as the body. An error after its start ends the connection.
fn file(parts: Parts, format: SoundFormat) -> Response {
    let parts = parts.map(|part| part.map_err(|error| io::Error::other(error.message())));
    ([(CONTENT_TYPE, format.media_type())], HttpBody::from_stream(parts)).into_response()
}

/// Returns the file as server-sent events.
fn events(parts: Parts, usage: SpeechUsage) -> Response {
    let done = futures::stream::iter([Ok(SpeechPart::Done { usage })]);
    let deltas =
        parts.map(|part| part.map(|bytes| SpeechPart::Delta { audio: BASE64_STANDARD.encode(bytes) }));
    // An error is the last event.
    let events = deltas.chain(done).scan(false, |has_failed, event| {
        let event = (!*has_failed).then(|| encode(&event));
        *has_failed |= matches!(event, Some((_, true)));
        std::future::ready(event.map(|(event, _)| Ok::<_, std::convert::Infallible>(event)))
    });
    Sse::new(events).into_response()
}

/// Returns the server-sent event of a part or an error, and whether it is an error.
fn encode(part: &Result<SpeechPart, ApiError>) -> (Event, bool) {
    // Serialising strings and numbers to JSON cannot fail.
    let json = match part {
        Ok(part) => serde_json::to_string(part),
        Err(error) => serde_json::to_string(&OpenAiErrorBody::of_stream(error.message())),
    };
    (Event::default().data(json.unwrap_or_default()), part.is_err())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::protocol::body::read_checked;

    fn read(fields: &Value) -> Result<ParsedSpeech, ApiError> {
        let mut body = json!({"model": "m", "input": "Hello."});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        read_checked(body.to_string().as_bytes())
    }

    #[test]
    fn the_fields_of_a_request_are_read() {
        let parsed = read(&json!({
            "voice": "amy", "speed": 2, "response_format": "flac", "stream_format": "sse", "seed": 3, "user": "ann",
        }));
        let parsed = parsed.ok().unwrap();
        let expect = SpeechRequest {
            voice: Some("amy".to_owned()),
            speed: 2.0,
            seed: Some(3),
            ..SpeechRequest::new("m", "Hello.")
        };
        assert_eq!(parsed.request, expect);
        assert_eq!((parsed.format, parsed.stream_format), (SoundFormat::Flac, StreamFormat::Sse));
        let plain = read(&json!({})).ok().unwrap();
        assert_eq!((plain.format, plain.stream_format), (SoundFormat::Wav, StreamFormat::Audio));
        let default = read(&json!({"model": "default", "voice": "default"})).ok().unwrap().request;
        assert_eq!((default.model.as_str(), default.voice), (SpeechRequest::DEFAULT_MODEL, None));
    }

    #[test]
    fn invalid_fields_are_named() {
        let check = |fields: Value, expect: &str| {
            let message = read(&fields).err().unwrap().message();
            assert!(message.contains(expect), "{message}");
        };
        check(json!({"response_format": "mp3"}), "expected one of wav, pcm, flac, opus, found \"mp3\"");
        check(json!({"stream_format": "lines"}), "stream_format");
        check(json!({"input": "a".repeat(4_097)}), "at most 4096 characters, found 4097");
        check(json!({"instructions": "Whisper."}), "instructions is not supported");
    }

    #[test]
    fn slow_speech_reserves_more_memory() {
        let request = |speed| SpeechRequest { speed, ..SpeechRequest::new("m", "0123456789") };
        assert_eq!(answer_bytes(&request(1.0)), 48_000);
        assert_eq!(answer_bytes(&request(0.25)), 192_000);
        assert_eq!(answer_bytes(&request(f32::NAN)), 0);
    }
}
