//! The settings of a session, and their changes by `session.update`.

use narthex_audio::{activity::ActivitySettings, language};
use narthex_gateway::request::TranscriptionRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::IgnoredAny};

use crate::{error::ApiError, openai::audio::transcription::model_of, protocol::fields::field_error};

/// Sample rates of PCM in Hz. OpenAI has only the default.
const PCM_RATES: std::ops::RangeInclusive<u32> = 8_000..=48_000;

/// Sample rate of PCM without a stated one.
const DEFAULT_PCM_RATE: u32 = 24_000;

/// Maximum duration of the pause that ends a turn, and of the audio before its speech.
const MAX_TURN_SETTING_MS: u32 = 10_000;

/// Maximum bytes of a prompt. Every recognition tokenizes it.
const MAX_PROMPT_BYTES: usize = 16 << 10;

/// Encoding of the audio of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub(super) enum AudioFormat {
    /// Integers of 16 bits in little-endian order.
    #[serde(rename = "audio/pcm")]
    Pcm { rate: u32 },
    /// G.711 μ-law, 8 kHz.
    #[serde(rename = "audio/pcmu")]
    MuLaw,
    /// G.711 A-law, 8 kHz.
    #[serde(rename = "audio/pcma")]
    ALaw,
}

impl AudioFormat {
    /// Returns the sample rate in Hz.
    pub(super) fn rate(self) -> u32 {
        match self {
            Self::Pcm { rate } => rate,
            Self::MuLaw | Self::ALaw => 8_000,
        }
    }
}

/// Model of the transcripts and its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct TranscriptionSettings {
    pub(super) model: String,
    pub(super) language: Option<String>,
    pub(super) prompt: Option<String>,
}

impl Default for TranscriptionSettings {
    fn default() -> Self {
        let model = TranscriptionRequest::DEFAULT_MODEL.to_owned();
        Self { model, language: None, prompt: None }
    }
}

/// Detection of the start and the end of speech.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub(super) struct TurnDetection {
    r#type: &'static str,
    threshold: f32,
    pub(super) prefix_padding_ms: u32,
    silence_duration_ms: u32,
}

impl Default for TurnDetection {
    /// Returns OpenAI's settings.
    fn default() -> Self {
        Self { r#type: SERVER_VAD, threshold: 0.5, prefix_padding_ms: 300, silence_duration_ms: 500 }
    }
}

/// The only supported type of turn detection.
const SERVER_VAD: &str = "server_vad";

impl TurnDetection {
    /// Returns the settings of the division into speech and pauses. The audio before the speech is in the buffer.
    pub(super) fn activity(self) -> ActivitySettings {
        ActivitySettings { threshold: self.threshold, pause_ms: self.silence_duration_ms, padding_ms: 0 }
    }
}

/// The settings of a session.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SessionSettings {
    pub(super) format: AudioFormat,
    /// `None`: audio gets no transcripts.
    pub(super) transcription: Option<TranscriptionSettings>,
    /// `None`: the client ends the turns.
    pub(super) turn_detection: Option<TurnDetection>,
}

impl SessionSettings {
    /// Returns the settings of a new session with a model.
    pub(super) fn new(model: Option<&str>) -> Self {
        let mut transcription = TranscriptionSettings::default();
        if let Some(model) = model {
            transcription.model = model_of(model).to_owned();
        }
        Self {
            format: AudioFormat::Pcm { rate: DEFAULT_PCM_RATE },
            transcription: Some(transcription),
            turn_detection: Some(TurnDetection::default()),
        }
    }

    /// Returns the settings after an event `session.update`. Fields that it lacks remain.
    pub(super) fn updated(&self, json: &str) -> Result<Self, ApiError> {
        check_kind(json)?;
        let mut json = serde_json::Deserializer::from_str(json);
        let event: UpdateEvent = serde_path_to_error::deserialize(&mut json).map_err(field_error)?;
        if event.session.include.is_some_and(|include| !include.is_empty()) {
            return Err(ApiError::unsupported("session.include"));
        }
        let input = event.session.audio.and_then(|audio| audio.input).unwrap_or_default();

        let mut settings = self.clone();
        if let Some(format) = input.format {
            settings.format = format.checked()?;
        }
        if let Some(update) = input.transcription {
            let before = settings.transcription.take().unwrap_or_default();
            settings.transcription = update.map(|update| update.applied_to(before)).transpose()?;
        }
        if let Some(update) = input.turn_detection {
            let before = settings.turn_detection.take().unwrap_or_default();
            settings.turn_detection = update.map(|update| update.applied_to(before)).transpose()?;
        }
        Ok(settings)
    }

    /// Returns the object of the session with this id.
    pub(super) fn object(&self, id: &str) -> SessionObject {
        let input = InputObject {
            format: self.format,
            transcription: self.transcription.clone(),
            noise_reduction: None,
            turn_detection: self.turn_detection,
        };
        SessionObject {
            r#type: TRANSCRIPTION,
            object: "realtime.transcription_session",
            id: id.to_owned(),
            audio: AudioObject { input },
            include: None,
        }
    }
}

/// The only supported type of sessions.
const TRANSCRIPTION: &str = "transcription";

/// Refuses sessions of other types by name, before their other fields are read.
fn check_kind(json: &str) -> Result<(), ApiError> {
    #[derive(Deserialize)]
    struct Event {
        session: Option<Kind>,
    }
    #[derive(Deserialize)]
    struct Kind {
        r#type: Option<String>,
    }
    const PARAM: &str = "session.type";

    let event: Event = serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(json))
        .map_err(field_error)?;
    let session = event.session.ok_or_else(|| ApiError::required("session"))?;
    match session.r#type.as_deref() {
        Some(TRANSCRIPTION) => Ok(()),
        None => Err(ApiError::required(PARAM)),
        Some("realtime") => {
            let message = "session.type: sessions of the type realtime, which answer speech with speech, are not \
                           supported; use the type transcription";
            Err(ApiError::unsupported_as(PARAM, message.to_owned()))
        }
        Some(other) => {
            let message = format!("session.type: expected transcription, found {other:?}");
            Err(ApiError::bad_request(PARAM, message))
        }
    }
}

/// An event `session.update`.
#[derive(Debug, Deserialize)]
struct UpdateEvent {
    session: SessionUpdate,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionUpdate {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    /// Fields of the session's object, which clients send back.
    #[serde(rename = "id")]
    _id: Option<IgnoredAny>,
    #[serde(rename = "object")]
    _object: Option<IgnoredAny>,
    #[serde(rename = "expires_at")]
    _expires_at: Option<IgnoredAny>,
    audio: Option<AudioUpdate>,
    include: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AudioUpdate {
    input: Option<InputUpdate>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct InputUpdate {
    format: Option<FormatUpdate>,
    /// Changes how the audio sounds, and not what is said; it has no effect here.
    #[serde(rename = "noise_reduction")]
    _noise_reduction: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "present")]
    transcription: Option<Option<TranscriptionUpdate>>,
    #[serde(default, deserialize_with = "present")]
    turn_detection: Option<Option<TurnDetectionUpdate>>,
}

/// Reads a field that is present, so that null differs from an absent field.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(json: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(json).map(Some)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FormatUpdate {
    r#type: String,
    rate: Option<u32>,
}

impl FormatUpdate {
    fn checked(self) -> Result<AudioFormat, ApiError> {
        let format = match self.r#type.as_str() {
            "audio/pcm" => AudioFormat::Pcm { rate: self.rate.unwrap_or(DEFAULT_PCM_RATE) },
            "audio/pcmu" => AudioFormat::MuLaw,
            "audio/pcma" => AudioFormat::ALaw,
            other => {
                let message = format!(
                    "session.audio.input.format.type: expected audio/pcm, audio/pcmu or audio/pcma, found {other:?}"
                );
                return Err(ApiError::bad_request("session.audio.input.format.type", message));
            }
        };

        let is_known = match format {
            AudioFormat::Pcm { rate } => PCM_RATES.contains(&rate),
            AudioFormat::MuLaw | AudioFormat::ALaw => self.rate.is_none_or(|rate| rate == format.rate()),
        };
        if is_known {
            return Ok(format);
        }
        let message = format!(
            "session.audio.input.format.rate: expected {} to {} Hz for audio/pcm and 8000 for the others, found {}",
            PCM_RATES.start(),
            PCM_RATES.end(),
            self.rate.unwrap_or_default()
        );
        Err(ApiError::bad_request("session.audio.input.format.rate", message))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TranscriptionUpdate {
    model: Option<String>,
    #[serde(default, deserialize_with = "present")]
    language: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    prompt: Option<Option<String>>,
}

impl TranscriptionUpdate {
    fn applied_to(self, before: TranscriptionSettings) -> Result<TranscriptionSettings, ApiError> {
        let model = self.model.map_or(before.model, |model| model_of(&model).to_owned());
        let language = self.language.unwrap_or(before.language).filter(|language| !language.is_empty());
        let prompt = self.prompt.unwrap_or(before.prompt).filter(|prompt| !prompt.is_empty());

        if let Some(unknown) = language.as_deref().filter(|name| language::code(name).is_none()) {
            let param = "session.audio.input.transcription.language";
            let message = format!("{param}: expected a code such as en or de, found {unknown:?}");
            return Err(ApiError::bad_request(param, message));
        }
        if let Some(length) = prompt.as_deref().map(str::len).filter(|length| *length > MAX_PROMPT_BYTES) {
            let param = "session.audio.input.transcription.prompt";
            let message = format!("{param}: expected at most {MAX_PROMPT_BYTES} bytes, found {length}");
            return Err(ApiError::bad_request(param, message));
        }
        Ok(TranscriptionSettings { model, language, prompt })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TurnDetectionUpdate {
    r#type: Option<String>,
    threshold: Option<f32>,
    prefix_padding_ms: Option<u32>,
    silence_duration_ms: Option<u32>,
    /// A transcription session has no responses that these could start or interrupt.
    #[serde(rename = "create_response")]
    _create_response: Option<IgnoredAny>,
    #[serde(rename = "interrupt_response")]
    _interrupt_response: Option<IgnoredAny>,
}

impl TurnDetectionUpdate {
    fn applied_to(self, before: TurnDetection) -> Result<TurnDetection, ApiError> {
        const PARAM: &str = "session.audio.input.turn_detection";
        if let Some(other) = self.r#type.filter(|name| name != SERVER_VAD) {
            let message =
                format!("{PARAM}.type: expected {SERVER_VAD} or no turn detection (null), found {other:?}");
            return Err(ApiError::unsupported_as(&format!("{PARAM}.type"), message));
        }
        let settings = TurnDetection {
            r#type: SERVER_VAD,
            threshold: self.threshold.unwrap_or(before.threshold),
            prefix_padding_ms: self.prefix_padding_ms.unwrap_or(before.prefix_padding_ms),
            silence_duration_ms: self.silence_duration_ms.unwrap_or(before.silence_duration_ms),
        };

        if !(settings.threshold > 0.0 && settings.threshold < 1.0) {
            let message =
                format!("{PARAM}.threshold: expected a number between 0 and 1, found {}", settings.threshold);
            return Err(ApiError::bad_request(format!("{PARAM}.threshold"), message));
        }
        let durations = [
            ("prefix_padding_ms", settings.prefix_padding_ms),
            ("silence_duration_ms", settings.silence_duration_ms),
        ];
        match durations.into_iter().find(|(_, duration)| *duration > MAX_TURN_SETTING_MS) {
            Some((name, found)) => {
                let message =
                    format!("{PARAM}.{name}: expected at most {MAX_TURN_SETTING_MS} ms, found {found}");
                Err(ApiError::bad_request(format!("{PARAM}.{name}"), message))
            }
            None => Ok(settings),
        }
    }
}

/// The object of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SessionObject {
    r#type: &'static str,
    object: &'static str,
    id: String,
    audio: AudioObject,
    include: Option<Vec<String>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AudioObject {
    input: InputObject,
}

#[derive(Debug, Serialize, JsonSchema)]
struct InputObject {
    format: AudioFormat,
    transcription: Option<TranscriptionSettings>,
    /// Always null.
    noise_reduction: Option<String>,
    turn_detection: Option<TurnDetection>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn updated(settings: &SessionSettings, input: &Value) -> Result<SessionSettings, ApiError> {
        let session = json!({"type": "transcription", "audio": {"input": input}});
        settings.updated(&json!({"type": "session.update", "session": session}).to_string())
    }

    #[test]
    fn updates_change_the_fields_that_they_have() {
        let first = SessionSettings::new(Some("whisper:tiny.en"));
        let object = json!(first.object("sess_1"));
        assert_eq!(
            object,
            json!({
                "type": "transcription",
                "object": "realtime.transcription_session",
                "id": "sess_1",
                "audio": {"input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": {"model": "whisper:tiny.en", "language": null, "prompt": null},
                    "noise_reduction": null,
                    "turn_detection": {
                        "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500
                    },
                }},
                "include": null,
            })
        );
        // A client may send the object back.
        assert_eq!(first.updated(&json!({"session": object}).to_string()).unwrap(), first);

        let changes = json!({
            "format": {"type": "audio/pcmu"},
            "transcription": {"language": "de"},
            "noise_reduction": {"type": "near_field"},
            "turn_detection": {"type": "server_vad", "threshold": 0.25, "create_response": false},
        });
        let second = updated(&first, &changes).unwrap();
        let transcription = second.transcription.clone().unwrap();
        assert_eq!(
            (transcription.model.as_str(), transcription.language.as_deref()),
            ("whisper:tiny.en", Some("de"))
        );
        let expect = TurnDetection { threshold: 0.25, ..TurnDetection::default() };
        assert_eq!((second.format, second.turn_detection), (AudioFormat::MuLaw, Some(expect)));
        assert_eq!(updated(&second, &json!({})).unwrap(), second);

        let third = updated(&second, &json!({"transcription": null, "turn_detection": null})).unwrap();
        assert_eq!((third.transcription, third.turn_detection), (None, None));
        assert_eq!(SessionSettings::new(Some("default")), SessionSettings::new(None));
    }

    #[test]
    fn invalid_settings_are_named() {
        let first = SessionSettings::new(None);
        let check = |input: Value, param: &str, expect: &str| {
            let error = updated(&first, &input).unwrap_err();
            assert_eq!(error.body()["error"]["param"], param, "{input}");
            assert!(error.message().contains(expect), "{}", error.message());
        };
        let input = "session.audio.input";
        check(json!({"format": {"type": "audio/opus"}}), &format!("{input}.format.type"), "audio/pcma");
        check(
            json!({"format": {"type": "audio/pcm", "rate": 7_999}}),
            &format!("{input}.format.rate"),
            "8000 to 48000",
        );
        check(
            json!({"format": {"type": "audio/pcma", "rate": 16_000}}),
            &format!("{input}.format.rate"),
            "found 16000",
        );
        check(
            json!({"transcription": {"language": "xx"}}),
            &format!("{input}.transcription.language"),
            "found \"xx\"",
        );
        check(
            json!({"transcription": {"prompt": "a".repeat(20_000)}}),
            &format!("{input}.transcription.prompt"),
            "20000",
        );
        check(
            json!({"transcription": {"delay": "low"}}),
            &format!("{input}.transcription.delay"),
            "unknown field",
        );
        let turns = format!("{input}.turn_detection");
        check(
            json!({"turn_detection": {"type": "semantic_vad"}}),
            &format!("{turns}.type"),
            "expected server_vad",
        );
        check(json!({"turn_detection": {"threshold": 1}}), &format!("{turns}.threshold"), "between 0 and 1");
        check(
            json!({"turn_detection": {"threshold": "a"}}),
            &format!("{turns}.threshold"),
            "expected a number",
        );
        check(
            json!({"turn_detection": {"silence_duration_ms": 20_000}}),
            &format!("{turns}.silence_duration_ms"),
            "10000 ms",
        );

        let kind = |session: Value| first.updated(&json!({"session": session}).to_string()).unwrap_err();
        let realtime = kind(json!({"type": "realtime", "instructions": "Be brief."}));
        assert_eq!(realtime.body()["error"]["param"], "session.type");
        assert!(realtime.message().contains("speech with speech"), "{}", realtime.message());
        assert!(kind(json!({"audio": {}})).message().contains("session.type is required"));
        assert!(kind(json!({"type": "translation"})).message().contains("expected transcription"));
        let include =
            json!({"type": "transcription", "include": ["item.input_audio_transcription.logprobs"]});
        assert!(kind(include).message().contains("session.include is not supported"));
        assert!(first.updated("{}").unwrap_err().message().contains("session is required"));
    }
}
