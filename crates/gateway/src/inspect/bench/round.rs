//! One request straight to the engine, with the times of its tokens.

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
    /// Until the caller knew of the end.
    pub(super) total: Duration,
    /// Until the first token.
    pub(super) first: Duration,
    /// From the first token to the end.
    pub(super) rest: Duration,
    /// Generated tokens.
    pub(super) tokens: usize,
}

impl Round {
    /// Milliseconds until the caller knew of the end.
    pub(super) fn total_ms(&self) -> f64 {
        self.total.as_secs_f64() * 1e3
    }

    /// Milliseconds until the first token.
    pub(super) fn first_ms(&self) -> f64 {
        self.first.as_secs_f64() * 1e3
    }

    /// Tokens of the prompt per second, up to the first generated one.
    pub(super) fn prefill_rate(&self, options: BenchOptions) -> f64 {
        options.prompt_tokens as f64 / self.first.as_secs_f64().max(1e-9)
    }

    /// Generated tokens per second after the first.
    pub(super) fn decode_rate(&self, options: BenchOptions) -> f64 {
        (options.generate_tokens - 1) as f64 / self.rest.as_secs_f64().max(1e-9)
    }

    /// Milliseconds of each token after the first; 0 where there is none.
    pub(super) fn token_ms(&self) -> f64 {
        match self.tokens {
            0 | 1 => 0.0,
            tokens => self.rest.as_secs_f64() * 1e3 / (tokens - 1) as f64,
        }
    }
}

/// What is generated.
#[derive(Debug, Clone)]
pub(super) struct RoundRequest {
    /// Tokens of the prompt.
    pub(super) prompt: Vec<TokenId>,
    /// Tokens to generate.
    pub(super) tokens: usize,
    /// Tokens that would end the answer and are made too unlikely for it, so that every answer is equally long.
    pub(super) barred: Vec<TokenId>,
}

/// What a barred token loses.
pub(super) const BAR: f32 = -100.0;

/// How long the machine rests before each request, since ONNX Runtime's threads spin for a while after their last work
/// and would take the processor from whoever comes next.
pub(super) fn rest() {
    std::thread::sleep(Duration::from_millis(100));
}

/// Runs one request.
pub(super) fn run(engine: &Engine, wanted: RoundRequest) -> Result<Round, Error> {
    let (events, received) = mpsc::channel();
    let logit_bias = wanted.barred.iter().map(|&token| (token, BAR)).collect();
    let request = Request {
        prompt: wanted.prompt,
        max_tokens: wanted.tokens,
        stop: wanted.barred,
        sampling: Sampling { logit_bias, ..Sampling::greedy() },
        logprobs: None,
        sink: Box::new(Clock { events }),
    };
    let begun = Instant::now();
    engine.submit(request).map_err(|error| Error::Invalid { param: "model", message: error.to_string() })?;
    let (mut first, mut last, mut tokens) = (None, begun, 0);
    for event in received {
        match event {
            Tick::Token(at) => {
                first.get_or_insert(at);
                (last, tokens) = (at, tokens + 1);
            }
            Tick::End(Finish::Failed(error)) => return Err(error.into()),
            Tick::End(_) => break,
        }
    }
    let (total, first) = (begun.elapsed(), first.ok_or(Error::ShuttingDown)?);
    Ok(Round { total, first: first - begun, rest: last - first, tokens })
}

enum Tick {
    Token(Instant),
    End(Finish),
}

struct Clock {
    events: mpsc::Sender<Tick>,
}

impl TokenSink for Clock {
    fn token(&mut self, _: TokenEvent<'_>) -> ControlFlow<()> {
        match self.events.send(Tick::Token(Instant::now())) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn finish(&mut self, finish: Finish, _: Usage) {
        // Nobody listens after an interrupt, and nothing is owed then.
        let _ = self.events.send(Tick::End(finish));
    }
}

#[cfg(test)]
mod tests {
    use narthex_engine::{
        executor::{KvLimits, Limits, StepError},
        worker::EngineConfig,
    };
    use narthex_testkit::executor::{FakeExecutor, Mishap};

    use super::*;

    fn engine(mishaps: &[Mishap]) -> Engine {
        let kv = KvLimits { bytes_per_token: 1, step: 8, budget: 1 << 20 };
        let limits = Limits { slots: 2, context: 64, chunk: 16, batch: 2, vocab: 32, kv };
        let mut executor = FakeExecutor::new(limits.clone());
        executor.mishaps = mishaps.to_vec().into();
        Engine::start(Box::new(executor), EngineConfig::for_limits(&limits)).unwrap()
    }

    #[test]
    fn an_answer_is_as_long_as_was_asked() {
        let engine = engine(&[]);
        for number in 0..8 {
            // Nearly every token is one that would end the answer, were it not barred.
            let wanted = RoundRequest { prompt: vec![number, 5], tokens: 9, barred: (0..31).collect() };
            let round = run(&engine, wanted).unwrap();
            assert_eq!(round.tokens, 9);
            assert!(round.token_ms() > 0.0, "{round:?}");
        }
    }

    #[test]
    fn a_failed_step_is_an_error() {
        let broken = StepError::Device { message: "gone".to_owned() };
        let engine = engine(&[Mishap::Error(broken.clone())]);
        let wanted = RoundRequest { prompt: vec![1], tokens: 4, barred: Vec::new() };
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
