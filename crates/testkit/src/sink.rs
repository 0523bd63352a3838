//! A sink that records its events for tests.

use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError},
};

use narthex_engine::request::{Finish, TokenEvent, TokenSink, Usage};
use narthex_spec::TokenId;

/// Events of one sequence.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// Number of times that the sequence has left the queue; a correct engine reports it at most once.
    pub starts: usize,
    /// Prompt tokens with their log-probabilities.
    pub prompt: Vec<(TokenId, Option<f32>)>,
    /// Generated tokens.
    pub tokens: Vec<TokenId>,
    /// Their log-probabilities.
    pub logprobs: Vec<Option<f32>>,
    /// Final events; a correct engine sends exactly one.
    pub ends: Vec<(Finish, Usage)>,
}

/// Records events.
#[derive(Debug, Clone, Default)]
pub struct Recorder {
    recording: Arc<Mutex<Recording>>,
    leave_after: Option<usize>,
}

impl Recorder {
    /// Creates a recorder that never returns `Break`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a recorder that returns `Break` at the token with this number, counted from 1.
    pub fn leaving_after(tokens: usize) -> Self {
        Self { leave_after: Some(tokens), ..Self::default() }
    }

    /// Returns the events so far.
    pub fn recording(&self) -> Recording {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn with<R>(&self, change: impl FnOnce(&mut Recording) -> R) -> R {
        change(&mut self.recording.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TokenSink for Recorder {
    fn started(&mut self, _: usize) {
        self.with(|recording| recording.starts += 1);
    }

    fn prompt_token(&mut self, event: TokenEvent<'_>) -> ControlFlow<()> {
        self.with(|recording| recording.prompt.push((event.token, event.logprob)));
        ControlFlow::Continue(())
    }

    fn token(&mut self, event: TokenEvent<'_>) -> ControlFlow<()> {
        let count = self.with(|recording| {
            recording.tokens.push(event.token);
            recording.logprobs.push(event.logprob);
            recording.tokens.len()
        });
        if self.leave_after == Some(count) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn finish(&mut self, finish: Finish, usage: Usage) {
        self.with(|recording| recording.ends.push((finish, usage)));
    }
}
