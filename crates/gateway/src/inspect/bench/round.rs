//! One request directly to the engine, with the times of its tokens.

use std::{
    ops::ControlFlow,
    sync::mpsc,
    time::{Duration, Instant},
};

use narthex_engine::{
    request::{Finish, Request, Sampling, TokenEvent, TokenSink, Usage},
    worker::Engine,
};
use narthex_spec::TokenId;

use super::BenchOptions;
use crate::error::Error;

/// Times of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Round {
    /// Time until the caller received the end.
    pub(super) total: Duration,
    /// Time to the first token.
    pub(super) first: Duration,
    /// Time from the first token to the end.
    pub(super) rest: Duration,
    /// Number of generated tokens.
    pub(super) tokens: usize,
}

impl Round {
    /// Returns the milliseconds until the caller received the end.
    pub(super) fn total_ms(&self) -> f64 {
        self.total.as_secs_f64() * 1e3
    }

    /// Returns the milliseconds to the first token.
    pub(super) fn first_ms(&self) -> f64 {
        self.first.as_secs_f64() * 1e3
    }

    /// Returns the prompt tokens per second, up to the first generated token.
    pub(super) fn prefill_rate(&self, options: BenchOptions) -> f64 {
        options.prompt_tokens as f64 / self.first.as_secs_f64().max(1e-9)
    }

    /// Returns the generated tokens per second after the first.
    pub(super) fn decode_rate(&self, options: BenchOptions) -> f64 {
        (options.generate_tokens - 1) as f64 / self.rest.as_secs_f64().max(1e-9)
    }

    /// Returns the milliseconds per token after the first; 0 for fewer than two tokens.
    pub(super) fn token_ms(&self) -> f64 {
        match self.tokens {
            0 | 1 => 0.0,
            tokens => self.rest.as_secs_f64() * 1e3 / (tokens - 1) as f64,
        }
    }
}

/// Prompt and length of a round.
#[derive(Debug, Clone)]
pub(super) struct RoundRequest {
    pub(super) prompt: Vec<TokenId>,
    /// Number of tokens to generate.
    pub(super) tokens: usize,
    /// Stop tokens that are suppressed, so that every answer has the same length.
    pub(super) suppressed: Vec<TokenId>,
}

/// Bias of a suppressed token.
pub(super) const SUPPRESSION: f32 = -100.0;

/// Sleeps before a request, since the threads of ONNX Runtime spin for a while after their last work and would slow
/// down the next request.
pub(super) fn cool_down() {
    std::thread::sleep(Duration::from_millis(100));
}

pub(super) fn run(engine: &Engine, request: RoundRequest) -> Result<Round, Error> {
    let (events, received) = mpsc::channel();
    let logit_bias = request.suppressed.iter().map(|&token| (token, SUPPRESSION)).collect();
    let submitted = Request {
        stop: request.suppressed,
        sampling: Sampling { logit_bias, ..Sampling::greedy() },
        ..Request::greedy(request.prompt, request.tokens, TimingSink { events })
    };
    let begun = Instant::now();
    engine
        .submit(submitted)
        .map_err(|error| Error::Invalid { param: "model", message: error.to_string() })?;

    let mut first = None;
    let mut last = begun;
    let mut tokens = 0;
    for event in received {
        match event {
            TokenTime::Token(at) => {
                first.get_or_insert(at);
                (last, tokens) = (at, tokens + 1);
            }
            TokenTime::End(Finish::Failed(error)) => return Err(error.into()),
            TokenTime::End(_) => break,
        }
    }

    let total = begun.elapsed();
    let first = first.ok_or(Error::ShuttingDown)?;
    Ok(Round { total, first: first - begun, rest: last - first, tokens })
}

enum TokenTime {
    Token(Instant),
    End(Finish),
}

struct TimingSink {
    events: mpsc::Sender<TokenTime>,
}

impl TokenSink for TimingSink {
    fn token(&mut self, _: TokenEvent<'_>) -> ControlFlow<()> {
        match self.events.send(TokenTime::Token(Instant::now())) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn finish(&mut self, finish: Finish, _: Usage) {
        // After an interrupt the receiver is gone.
        let _ = self.events.send(TokenTime::End(finish));
    }
}

#[cfg(test)]
mod tests {
    use narthex_engine::{
        executor::{Limits, StepError},
        worker::EngineConfig,
    };
    use narthex_testkit::executor::{FakeExecutor, Fault, KV};

    use super::*;

    fn engine(faults: &[Fault]) -> Engine {
        let limits = Limits { slots: 2, context: 64, chunk: 16, batch: 2, vocab: 32, kv: KV };
        let mut executor = FakeExecutor::new(limits.clone());
        executor.faults = faults.to_vec().into();
        Engine::start(Box::new(executor), EngineConfig::for_limits(&limits)).unwrap()
    }

    #[test]
    fn an_answer_is_as_long_as_was_asked() {
        let engine = engine(&[]);
        for number in 0..8 {
            // Tokens 0 to 30 are suppressed stop tokens. Without suppression, nearly any token would end the answer.
            let wanted = RoundRequest { prompt: vec![number, 5], tokens: 9, suppressed: (0..31).collect() };
            let round = run(&engine, wanted).unwrap();
            assert_eq!(round.tokens, 9);
            assert!(round.token_ms() > 0.0, "{round:?}");
        }
    }

    #[test]
    fn a_failed_step_is_an_error() {
        let broken = StepError::Device { message: "gone".to_owned() };
        let engine = engine(&[Fault::Error(broken.clone())]);
        let wanted = RoundRequest { prompt: vec![1], tokens: 4, suppressed: Vec::new() };
        let found = run(&engine, wanted).unwrap_err().to_string();
        assert_eq!(found, broken.to_string());
    }

    #[test]
    fn one_token_has_no_rate() {
        let ms = Duration::from_millis;
        let round = |tokens| Round { total: ms(31), first: ms(1), rest: ms(30), tokens };
        assert_eq!((round(0).token_ms(), round(1).token_ms(), round(4).token_ms()), (0.0, 0.0, 10.0));
    }
}
