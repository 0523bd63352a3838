//! Complete answers, collected from the events of a generation.

use axum::http::StatusCode;
use narthex_gateway::request::{FinishReason, GenerationEvent, Summary, TokenInfo};

use crate::{error::ApiError, events::Events};

/// One choice of a complete answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenInfo>,
    pub(crate) finish: Option<FinishReason>,
}

/// A complete answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) choices: Vec<Choice>,
    pub(crate) summary: Summary,
}

/// Waits for an answer with `n` choices.
pub(crate) async fn collect(mut events: Events, n: usize) -> Result<Reply, ApiError> {
    let mut choices = vec![Choice::default(); n];
    while let Some(event) = events.next().await {
        match event {
            GenerationEvent::Started { .. } => {}
            GenerationEvent::Text { choice, text, tokens } => {
                if let Some(choice) = choices.get_mut(choice) {
                    choice.text.push_str(&text);
                    choice.tokens.extend(tokens);
                }
            }
            GenerationEvent::Finished { choice, reason } => {
                if let Some(choice) = choices.get_mut(choice) {
                    choice.finish = Some(reason);
                }
            }
            GenerationEvent::Done(summary) => return Ok(Reply { choices, summary }),
            GenerationEvent::Failed { message } => {
                return Err(ApiError::plain(StatusCode::SERVICE_UNAVAILABLE, message));
            }
        }
    }
    Err(ApiError::plain(StatusCode::SERVICE_UNAVAILABLE, "the engine stopped before the answer was complete"))
}
