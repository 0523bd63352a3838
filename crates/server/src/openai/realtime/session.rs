//! A session without its I/O: the buffer of the audio, its turns and the events about them.

use std::{collections::VecDeque, mem};

use axum::http::StatusCode;
use narthex_audio::{
    activity::{FRAME_SAMPLES, SpeechDivider},
    transcript::Usage,
};

use super::{
    MAX_APPENDED, MAX_BUFFERED, SECOND,
    events::{AudioItem, EventContent},
    settings::{SessionSettings, TranscriptionSettings, TurnDetection},
    speech::{RecognisedSegment, Recognition},
    turn::{LiveTurn, TurnProgress},
};
use crate::{error::ApiError, protocol::id};

/// Minimum audio of an item that a client commits.
const MIN_COMMITTED: usize = SECOND / 10;

/// A session.
pub(super) struct Session {
    id: String,
    settings: SessionSettings,
    /// Samples that are neither settled nor committed. Those before a turn are the padding of the next one.
    buffer: Vec<f32>,
    /// Number of samples of all audio.
    received: u64,
    /// Number of samples of all audio that the detector of speech has read.
    examined: u64,
    divider: Option<SpeechDivider>,
    open: Option<LiveTurn>,
    /// Complete turns that wait for their transcripts.
    committed: VecDeque<CommittedTurn>,
    last_item: Option<String>,
    events: Vec<EventContent>,
    /// Number of tokens to charge.
    tokens: usize,
}

/// A turn that has ended.
struct CommittedTurn {
    turn: LiveTurn,
    /// Settings at its end, which later ones do not change.
    settings: TranscriptionSettings,
    /// Audio that is not settled.
    samples: Vec<f32>,
    /// Number of samples of the whole turn.
    length: u64,
}

impl Session {
    /// Creates a session, with the event about its start.
    pub(super) fn new(settings: SessionSettings) -> Self {
        let id = id::new_id("sess_");
        let events = vec![EventContent::SessionCreated { session: settings.object(&id) }];
        Self {
            divider: new_divider(settings.turn_detection),
            id,
            settings,
            buffer: Vec::new(),
            received: 0,
            examined: 0,
            open: None,
            committed: VecDeque::new(),
            last_item: None,
            events,
            tokens: 0,
        }
    }

    pub(super) fn settings(&self) -> &SessionSettings {
        &self.settings
    }

    /// Adds an event for the client.
    pub(super) fn send(&mut self, event: EventContent) {
        self.events.push(event);
    }

    /// Removes the events for the client, in order.
    pub(super) fn take_events(&mut self) -> Vec<EventContent> {
        mem::take(&mut self.events)
    }

    /// Removes the number of tokens to charge.
    pub(super) fn take_tokens(&mut self) -> usize {
        mem::take(&mut self.tokens)
    }

    /// Changes the settings by an event `session.update`. Audio in the buffer remains.
    pub(super) fn update(&mut self, json: &str) -> Result<(), ApiError> {
        let settings = self.settings.updated(json)?;
        if settings.turn_detection != self.settings.turn_detection {
            self.divider = new_divider(settings.turn_detection);
            self.examined = self.received;
        }
        self.settings = settings;
        self.send(EventContent::SessionUpdated { session: self.settings.object(&self.id) });
        Ok(())
    }

    /// Returns whether the buffer has room for any event with audio.
    pub(super) fn has_room(&self) -> bool {
        self.buffered() + MAX_APPENDED <= MAX_BUFFERED
    }

    fn buffered(&self) -> usize {
        self.buffer.len() + self.committed.iter().map(|turn| turn.samples.len()).sum::<usize>()
    }

    /// Index of the first sample of the buffer in all audio.
    fn buffer_start(&self) -> u64 {
        self.received - self.buffer.len() as u64
    }

    /// Adds audio to the buffer.
    pub(super) fn append(&mut self, samples: &[f32]) -> Result<(), ApiError> {
        if self.buffered() + samples.len() > MAX_BUFFERED {
            let message = format!(
                "the buffer has {} seconds of audio, which is the maximum; commit or clear it",
                MAX_BUFFERED / SECOND
            );
            return Err(ApiError::bad_request("audio", message).with_code("input_audio_buffer_full"));
        }
        if self.divider.is_none() && self.open.is_none() && !samples.is_empty() {
            self.open = Some(LiveTurn::new(self.buffer_start()));
        }
        self.buffer.extend_from_slice(samples);
        self.received += samples.len() as u64;
        Ok(())
    }

    /// Returns the frames that the detector of speech has not read; `None` if there are none.
    pub(super) fn unexamined_frames(&self) -> Option<Vec<f32>> {
        self.divider.as_ref()?;
        let rest = &self.buffer[self.index_of(self.examined)..];
        let whole = &rest[..rest.len() / FRAME_SAMPLES * FRAME_SAMPLES];
        (!whole.is_empty()).then(|| whole.to_vec())
    }

    /// Index in the buffer of a sample of all audio.
    fn index_of(&self, sample: u64) -> usize {
        usize::try_from(sample.saturating_sub(self.buffer_start()))
            .unwrap_or(usize::MAX)
            .min(self.buffer.len())
    }

    /// Takes the probabilities of speech in the frames of [`Self::unexamined_frames`]. Starts and ends turns.
    pub(super) fn examine(&mut self, probabilities: &[f32]) {
        let padding = self.settings.turn_detection.map_or(0, |turns| turns.prefix_padding_ms as usize);
        let padding = (padding * SECOND / 1000) as u64;
        for &probability in probabilities {
            let start = self.index_of(self.examined);
            let (Some(divider), Some(frame)) =
                (&mut self.divider, self.buffer.get(start..start + FRAME_SAMPLES))
            else {
                return;
            };
            let was_in_speech = divider.is_in_speech();
            divider.push(frame, probability);
            let is_in_speech = divider.is_in_speech();
            let first = self.examined;
            self.examined += FRAME_SAMPLES as u64;

            if is_in_speech && !was_in_speech && self.open.is_none() {
                self.discard_before(first.saturating_sub(padding));
                let turn = LiveTurn::new(self.buffer_start());
                self.send(EventContent::SpeechStarted {
                    audio_start_ms: milliseconds(turn.start),
                    item_id: turn.item_id.clone(),
                });
                self.open = Some(turn);
            }
            if was_in_speech && !is_in_speech {
                self.stop_speech();
            }
        }
        if self.open.is_none() {
            self.discard_before(self.examined.saturating_sub(padding));
        }
    }

    /// Ends the open turn after the last frame that was examined.
    fn stop_speech(&mut self) {
        if let Some(turn) = self.open.take() {
            self.send(EventContent::SpeechStopped {
                audio_end_ms: milliseconds(self.examined),
                item_id: turn.item_id.clone(),
            });
            self.finish(turn, self.examined);
        }
    }

    /// Removes the samples of the buffer before a sample of all audio.
    fn discard_before(&mut self, sample: u64) {
        let count = self.index_of(sample);
        self.buffer.drain(..count);
    }

    /// Ends the open turn at the end of the buffer.
    pub(super) fn commit(&mut self) -> Result<(), ApiError> {
        let length = self.open.as_ref().map_or(0, |turn| self.received - turn.start);
        if length < MIN_COMMITTED as u64 {
            let found = milliseconds(length);
            let message = format!("expected at least 100 ms of audio in the buffer, found {found} ms");
            let error = ApiError::plain(StatusCode::BAD_REQUEST, message);
            return Err(error.with_code("input_audio_buffer_commit_empty"));
        }
        if let Some(turn) = self.open.take() {
            self.finish(turn, self.received);
        }
        // Speech that goes on is the next turn.
        self.divider = new_divider(self.settings.turn_detection);
        self.examined = self.received;
        Ok(())
    }

    /// Makes an item of a turn that ends at a sample of all audio.
    fn finish(&mut self, turn: LiveTurn, end: u64) {
        let count = self.index_of(end);
        let samples = self.buffer.drain(..count).collect();
        let item_id = turn.item_id.clone();
        let previous_item_id = self.last_item.replace(item_id.clone());
        let item = AudioItem::new(&item_id);
        self.send(EventContent::Committed { previous_item_id: previous_item_id.clone(), item_id });
        self.send(EventContent::ItemAdded { previous_item_id: previous_item_id.clone(), item: item.clone() });
        self.send(EventContent::ItemDone { previous_item_id, item });
        if let Some(settings) = self.settings.transcription.clone() {
            let length = end - turn.start;
            self.committed.push_back(CommittedTurn { turn, settings, samples, length });
        } else {
            self.tokens += turn.uncharged_tokens();
        }
    }

    /// Discards the audio of the buffer.
    pub(super) fn clear(&mut self) {
        self.discard();
        self.send(EventContent::Cleared);
    }

    /// Discards the audio of the buffer without an event.
    pub(super) fn discard(&mut self) {
        self.tokens += self.open.take().map_or(0, |turn| turn.uncharged_tokens());
        self.buffer.clear();
        self.divider = new_divider(self.settings.turn_detection);
        self.examined = self.received;
    }

    /// Ends the session: counts the tokens of all turns without a transcript, and discards the audio.
    pub(super) fn end(&mut self) {
        self.discard();
        self.tokens += self.committed.drain(..).map(|turn| turn.turn.uncharged_tokens()).sum::<usize>();
    }

    /// Returns the audio to recognise next: that of the oldest complete turn, or of the open one.
    pub(super) fn next_recognition(&mut self) -> Option<Recognition> {
        if let Some(CommittedTurn { turn, settings, samples, .. }) = self.committed.front_mut() {
            let context = turn.begin_recognition(self.received);
            return Some(Recognition {
                item_id: turn.item_id.clone(),
                samples: mem::take(samples),
                settings: settings.clone(),
                context,
                is_final: true,
            });
        }
        let settings = self.settings.transcription.clone()?;
        let turn = self.open.as_mut().filter(|turn| turn.is_due(self.received, self.buffer.len()))?;
        let context = turn.begin_recognition(self.received);
        let samples = self.buffer.clone();
        Some(Recognition { item_id: turn.item_id.clone(), samples, settings, context, is_final: false })
    }

    /// Returns whether the result for an open turn is still of use.
    pub(super) fn is_open(&self, item_id: &str) -> bool {
        self.open.as_ref().is_some_and(|turn| turn.item_id == item_id)
    }

    /// Takes the result for the oldest complete turn.
    pub(super) fn complete(&mut self, outcome: Result<Vec<RecognisedSegment>, ApiError>) {
        let Some(CommittedTurn { mut turn, length, .. }) = self.committed.pop_front() else { return };
        let item_id = turn.item_id.clone();
        let event = match outcome {
            Err(error) => {
                self.tokens += turn.uncharged_tokens();
                EventContent::TranscriptFailed { item_id, content_index: 0, error: error.to_object() }
            }
            Ok(result) => {
                self.tokens += result.iter().map(|segment| segment.tokens).sum::<usize>();
                let delta = turn.complete(&result);
                self.send_delta(&item_id, delta);
                EventContent::TranscriptCompleted {
                    item_id,
                    content_index: 0,
                    transcript: turn.transcript().to_owned(),
                    usage: Usage::Duration { seconds: length.div_ceil(SECOND as u64) },
                }
            }
        };
        self.send(event);
    }

    /// Takes the result for the first `length` samples of the buffer, which belong to the open turn.
    pub(super) fn observe(&mut self, outcome: Result<Vec<RecognisedSegment>, ApiError>, length: usize) {
        let examined = if self.divider.is_some() { self.index_of(self.examined) } else { self.buffer.len() };
        let Some(turn) = &mut self.open else { return };
        let result = match outcome {
            Ok(result) => result,
            // The transcript of the complete turn states the error.
            Err(error) => {
                if !error.is_temporary() {
                    turn.fail();
                }
                return;
            }
        };
        let TurnProgress { delta, settled, tokens } = turn.observe(&result, length);
        let item_id = turn.item_id.clone();
        self.buffer.drain(..settled.min(examined));
        self.tokens += tokens;
        self.send_delta(&item_id, delta);
    }

    fn send_delta(&mut self, item_id: &str, delta: String) {
        if !delta.is_empty() {
            self.send(EventContent::TranscriptDelta { item_id: item_id.to_owned(), content_index: 0, delta });
        }
    }
}

fn new_divider(turns: Option<TurnDetection>) -> Option<SpeechDivider> {
    turns.map(|turns| SpeechDivider::new(turns.activity()))
}

/// Returns a number of samples in milliseconds.
fn milliseconds(samples: u64) -> u64 {
    samples * 1000 / SECOND as u64
}
