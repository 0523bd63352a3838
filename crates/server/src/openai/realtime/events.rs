//! The events of a session.

use narthex_audio::transcript::Usage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settings::SessionObject;
use crate::{
    error::{ApiError, OpenAiError},
    protocol::id,
};

/// Maximum bytes of the id of a client's event in an error.
const MAX_EVENT_ID: usize = 128;

/// The fields of a client's event, except for its session.
#[derive(Debug, Deserialize)]
pub(super) struct ClientEvent {
    pub(super) r#type: String,
    pub(super) event_id: Option<String>,
    pub(super) audio: Option<String>,
}

impl ClientEvent {
    /// Reads an event.
    pub(super) fn read(json: &str) -> Result<Self, ApiError> {
        serde_json::from_str(json).map_err(|error| {
            let message = format!("expected an event as a JSON object with a type: {error}");
            ApiError::bad_request("type", message).with_code("invalid_event")
        })
    }
}

/// An event that the server sends.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ServerEvent {
    event_id: String,
    #[serde(flatten)]
    content: EventContent,
}

impl From<EventContent> for ServerEvent {
    fn from(content: EventContent) -> Self {
        Self { event_id: id::new_id("event_"), content }
    }
}

/// Type of an event with its fields.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub(super) enum EventContent {
    /// The first event of a session.
    #[serde(rename = "session.created")]
    SessionCreated {
        /// The settings.
        session: SessionObject,
    },
    /// The settings have changed.
    #[serde(rename = "session.updated")]
    SessionUpdated {
        /// The settings.
        session: SessionObject,
    },
    /// Speech was found in the audio.
    #[serde(rename = "input_audio_buffer.speech_started")]
    SpeechStarted {
        /// Start of the turn, in milliseconds of the session's audio.
        audio_start_ms: u64,
        item_id: String,
    },
    /// The speech has ended with a pause.
    #[serde(rename = "input_audio_buffer.speech_stopped")]
    SpeechStopped {
        /// End of the turn, in milliseconds of the session's audio.
        audio_end_ms: u64,
        item_id: String,
    },
    /// The audio of a turn has become an item.
    #[serde(rename = "input_audio_buffer.committed")]
    Committed { previous_item_id: Option<String>, item_id: String },
    /// The audio was discarded.
    #[serde(rename = "input_audio_buffer.cleared")]
    Cleared,
    /// An item was added.
    #[serde(rename = "conversation.item.added")]
    ItemAdded { previous_item_id: Option<String>, item: AudioItem },
    /// An item is complete, except for its transcript.
    #[serde(rename = "conversation.item.done")]
    ItemDone { previous_item_id: Option<String>, item: AudioItem },
    /// The next text of an item's transcript. It may come before the item is added.
    #[serde(rename = "conversation.item.input_audio_transcription.delta")]
    TranscriptDelta { item_id: String, content_index: u32, delta: String },
    /// The whole transcript of an item, which is its deltas joined.
    #[serde(rename = "conversation.item.input_audio_transcription.completed")]
    TranscriptCompleted { item_id: String, content_index: u32, transcript: String, usage: Usage },
    /// The transcript of an item failed.
    #[serde(rename = "conversation.item.input_audio_transcription.failed")]
    TranscriptFailed { item_id: String, content_index: u32, error: OpenAiError },
    /// An event of the client, or work for the session, failed.
    #[serde(rename = "error")]
    Error { error: EventError },
}

impl EventContent {
    /// Returns the event of an error that an event of the client caused.
    pub(super) fn error(error: ApiError, event_id: Option<String>) -> Self {
        let event_id = event_id.map(|mut id| {
            id.truncate(id.floor_char_boundary(MAX_EVENT_ID));
            id
        });
        Self::Error { error: EventError { error: error.to_object(), event_id } }
    }
}

/// An error with the event of the client that caused it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EventError {
    #[serde(flatten)]
    error: OpenAiError,
    event_id: Option<String>,
}

/// A user's message with audio.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct AudioItem {
    id: String,
    object: &'static str,
    r#type: &'static str,
    status: &'static str,
    role: &'static str,
    content: [AudioContent; 1],
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct AudioContent {
    r#type: &'static str,
    /// Always null; events of their own have the transcript.
    transcript: Option<String>,
}

impl AudioItem {
    /// Returns the item with this id.
    pub(super) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            object: "realtime.item",
            r#type: "message",
            status: "completed",
            role: "user",
            content: [AudioContent { r#type: "input_audio", transcript: None }],
        }
    }
}
