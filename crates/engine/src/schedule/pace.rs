//! Number of prompt tokens in a step with running answers. It follows from measured times, so that the time between two
//! tokens of an answer stays below a limit.

use std::time::Duration;

use crate::{executor::StepPlan, speculate::average};

/// Minimum number of prompt tokens in a step with answers. Fewer would take almost as much time, and prompts must
/// advance.
const MIN_TOKENS: usize = 16;

/// Measured times of steps: a constant part for the answers, and a part for each prompt token.
#[derive(Debug, Clone, Default)]
pub(crate) struct PromptPace {
    /// Seconds of a step without prompts, if measured.
    answers: Option<f32>,
    /// Seconds of each prompt token, if measured.
    token: Option<f32>,
}

impl PromptPace {
    /// Records the time of a step that has run.
    pub(crate) fn record(&mut self, plan: &StepPlan, time: Duration) {
        let seconds = time.as_secs_f32();
        let prompts = plan.spans.iter().map(|span| span.tokens.len()).filter(|&tokens| tokens > 1);
        let tokens: usize = prompts.clone().sum();
        if tokens == 0 {
            self.answers = Some(average(self.answers, seconds));
        } else if tokens >= MIN_TOKENS {
            let with_answers = prompts.count() < plan.spans.len();
            let answers = self.answers.filter(|_| with_answers).unwrap_or(0.0);
            self.token = Some(average(self.token, (seconds - answers).max(0.0) / tokens as f32));
        }
    }

    /// Returns the seconds of a step without prompts, if measured.
    pub(crate) fn answer_seconds(&self) -> Option<f32> {
        self.answers
    }

    /// Returns the seconds of each prompt token, if measured.
    pub(crate) fn prompt_seconds(&self) -> Option<f32> {
        self.token
    }

    /// Returns the number of prompt tokens, at most `most`, that fit into a step of at most `bound` with answers.
    pub(crate) fn tokens(&self, bound: Duration, most: usize) -> usize {
        let Some(token) = self.token.filter(|token| *token > 0.0) else { return most };
        let left = bound.as_secs_f32() - self.answers.unwrap_or(0.0);
        ((left / token) as usize).clamp(MIN_TOKENS.min(most), most)
    }
}
