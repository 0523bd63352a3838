//! An answer as an iterator over its text.

use std::sync::mpsc::{self, Receiver};

use crate::{
    error::Error,
    serve::{
        generation::Generation,
        request::{FinishReason, GenerationEvent, GenerationSink, Summary},
    },
};

/// An answer that is being generated: an iterator over the parts of its text. Dropping it ends the generation.
///
/// ```no_run
/// use narthex_gateway::{Config, Gateway, request::ChatRequest};
///
/// # fn main() -> Result<(), narthex_gateway::Error> {
/// let gateway = Gateway::open(Config::standard())?;
/// for part in gateway.stream("smollm2:135m", ChatRequest::user("Tell me a story."))? {
///     print!("{}", part?);
/// }
/// # Ok(())
/// # }
/// ```
pub struct AnswerStream {
    generation: Generation,
    events: Receiver<GenerationEvent>,
    reason: Option<FinishReason>,
    summary: Option<Summary>,
    /// Set once the answer has ended or failed.
    is_over: bool,
}

impl AnswerStream {
    /// Starts a generation with one choice.
    pub(crate) fn start(
        start: impl FnOnce(Box<dyn GenerationSink>) -> Result<Generation, Error>,
    ) -> Result<Self, Error> {
        let (sender, events) = mpsc::channel();
        let generation = start(Box::new(sender))?;
        Ok(Self { generation, events, reason: None, summary: None, is_over: false })
    }

    /// Returns the rest of the text, once it is complete.
    pub fn text(mut self) -> Result<String, Error> {
        self.by_ref().collect()
    }

    /// Returns the facts about the generation that were known at its start.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Returns the reason of the end, after the last part.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.reason
    }

    /// Returns the token counts and times, after the last part.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }
}

impl Iterator for AnswerStream {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over {
            match self.events.recv() {
                Ok(GenerationEvent::Text { text, .. }) if !text.is_empty() => return Some(Ok(text)),
                Ok(GenerationEvent::Finished { reason, .. }) => self.reason = Some(reason),
                Ok(GenerationEvent::Done(summary)) => {
                    self.summary = Some(summary);
                    self.is_over = true;
                }
                Ok(GenerationEvent::Failed { kind, message }) => {
                    self.is_over = true;
                    return Some(Err(Error::AnswerFailed { kind, message }));
                }
                Ok(_) => {}
                // The engine has stopped.
                Err(_) => {
                    self.is_over = true;
                    return Some(Err(Error::ShuttingDown));
                }
            }
        }
        None
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        if !self.is_over {
            self.generation.cancel();
        }
    }
}
