//! `GET /v1/realtime`: transcripts of live audio over a WebSocket, with the events of OpenAI's Realtime API (GA) for sessions
//! of the type `transcription`.
//!
//! `connect` upgrades a request to a WebSocket if `live_sessions` has a place for another session. `socket` drives a session: it
//! reads the client's events, and starts the work that [`session::Session`] asks for. The session itself is a state machine
//! without I/O. It divides the audio into turns and keeps their text. `speech` is the interface to the recogniser.
//!
//! A session runs one recognition at a time. If the client reads nothing, the session reads no event and starts no recognition,
//! so nothing accumulates. The recogniser never waits for a client.

mod audio_input;
pub(crate) mod connect;
pub(crate) mod events;
mod session;
mod settings;
mod socket;
mod speech;
#[cfg(test)]
mod tests;
mod turn;

use narthex_audio::SPEECH_RATE;

/// Samples of a second of the audio that is recognised.
const SECOND: usize = SPEECH_RATE as usize;

/// Maximum size of a message from a client, and of its frames.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Maximum samples of one event.
const MAX_APPENDED: usize = 30 * SECOND;

/// Maximum samples of a session that wait for their recognition.
const MAX_BUFFERED: usize = 120 * SECOND;
