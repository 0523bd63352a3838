//! Overhead of the gateway: the same conversation runs alternately through the engine alone and through the gateway.

use std::{ops::ControlFlow, sync::mpsc, time::Instant};

use narthex_engine::executor::StepError;
use narthex_spec::{Date, TokenId};
use narthex_text::{
    prompt,
    template::{ChatTemplate, RenderOptions},
};
use serde::Serialize;

use super::{
    BenchOptions, Spread,
    round::{self, Round, RoundRequest, SUPPRESSION},
};
use crate::{
    cancel::Cancel,
    error::Error,
    gateway::Gateway,
    load::loaded_model::LoadedModel,
    serve::request::{
        ChatRequest, GenerateOptions, GenerationEvent, GenerationSink, HistoryOverflow, Message,
        ReadingSettings, ReasoningSettings, Role, Summary, Times, ToolSettings,
    },
};

/// Time that messages, templates, tokenizers and text processing add to the engine's own time.
#[derive(Debug, Clone, Serialize)]
pub struct Overhead {
    /// Tokens of the conversation, template included.
    pub prompt_tokens: usize,
    /// Milliseconds per generated token of the engine alone.
    pub engine_token_ms: Spread,
    /// Milliseconds per generated token through [`Gateway::chat`].
    pub gateway_token_ms: Spread,
    /// Ratio of the second to the first in each round.
    pub token_ratio: Spread,
    /// Milliseconds of a request through [`Gateway::chat`] minus those of the engine alone. The answer is one token
    /// whose logits the engine has cached, so that both times are short and their difference is precise.
    pub request_ms: Spread,
}

/// Words of the conversation, which are about one token each.
const WORDS: [&str; 8] = ["the", "house", "is", "near", "a", "river", "and", "old"];

/// Number of pairs of requests that are answered from the cache.
const REQUESTS: usize = 31;

/// Settings that are equal for both sides.
struct OverheadBench<'a> {
    gateway: &'a Gateway,
    model: &'a str,
    loaded: &'a LoadedModel,
    template: &'a ChatTemplate,
    options: BenchOptions,
}

/// Measures a loaded model. Returns `None` without a chat template, or if the conversation does not fit the context.
pub(super) fn measure(
    gateway: &Gateway,
    model: &str,
    loaded: &LoadedModel,
    options: BenchOptions,
    cancel: &Cancel,
) -> Result<Option<Overhead>, Error> {
    let Some(template) = &loaded.template else { return Ok(None) };
    let bench = OverheadBench { gateway, model, loaded, template, options };
    let prompt_tokens = bench.tokens(2 * options.rounds + 1)?.len();
    if prompt_tokens + options.generate_tokens > loaded.engine()?.limits().longest() {
        return Ok(None);
    }
    let mut pairs = Vec::with_capacity(options.rounds);
    for number in 0..=options.rounds {
        cancel.check()?;
        let pair = bench.round(number)?;
        // The first round is a warm-up, as in the rest of the benchmark.
        if number > 0 {
            pairs.push(pair);
        }
    }
    let requests = bench.requests(2 * options.rounds + 2)?;
    Ok(Some(Overhead::of(prompt_tokens, &pairs, &requests)))
}

/// Returns the spread of a figure of pairs, each through the engine and the gateway.
fn spread(pairs: &[(Round, Round)], figure: fn(&Round, &Round) -> f64) -> Spread {
    Spread::of(pairs.iter().map(|(engine, gateway)| figure(engine, gateway)).collect())
}

impl Overhead {
    /// Returns the figures of rounds and of requests answered from the cache, each through the engine and the gateway.
    fn of(prompt_tokens: usize, pairs: &[(Round, Round)], requests: &[(Round, Round)]) -> Self {
        Self {
            prompt_tokens,
            engine_token_ms: spread(pairs, |engine, _| engine.token_ms()),
            gateway_token_ms: spread(pairs, |_, gateway| gateway.token_ms()),
            token_ratio: spread(pairs, |engine, gateway| gateway.token_ms() / engine.token_ms().max(1e-9)),
            request_ms: spread(requests, |engine, gateway| gateway.total_ms() - engine.total_ms()),
        }
    }
}

impl OverheadBench<'_> {
    /// Runs a round through the engine and one through the gateway. The conversations differ, so that only the
    /// beginning of the template is cached.
    fn round(&self, number: usize) -> Result<(Round, Round), Error> {
        self.pair(number, [2 * number, 2 * number + 1], self.options.generate_tokens)
    }

    /// Runs pairs of requests for one token over one conversation, which is cached.
    fn requests(&self, conversation: usize) -> Result<Vec<(Round, Round)>, Error> {
        self.engine(conversation, 1)?;
        (0..REQUESTS).map(|number| self.pair(number, [conversation; 2], 1)).collect()
    }

    /// Runs these conversations once through the engine and once through the gateway. The order alternates, because the
    /// first run may affect the time of the second.
    fn pair(
        &self,
        number: usize,
        [first, second]: [usize; 2],
        tokens: usize,
    ) -> Result<(Round, Round), Error> {
        if number.is_multiple_of(2) {
            let engine = self.engine(first, tokens)?;
            Ok((engine, self.through(second, tokens)?))
        } else {
            let through = self.through(first, tokens)?;
            Ok((self.engine(second, tokens)?, through))
        }
    }

    /// Returns a conversation that begins with its number, so that conversations share no prefix.
    fn messages(&self, number: usize) -> Vec<Message> {
        let words = WORDS.iter().cycle().take(self.options.prompt_tokens);
        let text = words.fold(format!("{number:06}"), |text, word| text + " " + word);
        vec![Message::new(Role::User, text)]
    }

    fn tokens(&self, number: usize) -> Result<Vec<TokenId>, Error> {
        let options = RenderOptions::answer(Date::today());
        let bos = self.loaded.package.manifest.bos();
        let messages = self.messages(number);
        Ok(prompt::tokens(self.loaded.tokenizer()?, self.template, &messages, &options, bos)?)
    }

    fn suppressed(&self) -> &[TokenId] {
        self.loaded.package.manifest.stop_tokens()
    }

    fn engine(&self, number: usize, tokens: usize) -> Result<Round, Error> {
        let wanted =
            RoundRequest { prompt: self.tokens(number)?, tokens, suppressed: self.suppressed().to_vec() };
        round::cool_down();
        round::run(self.loaded.engine()?, wanted)
    }

    fn through(&self, number: usize, tokens: usize) -> Result<Round, Error> {
        let question = Question { model: self.model, loaded: self.loaded, tokens };
        ask(self.gateway, question, self.messages(number))
    }
}

/// A request through the gateway.
pub(super) struct Question<'a> {
    /// Id of the loaded model.
    pub(super) model: &'a str,
    pub(super) loaded: &'a LoadedModel,
    /// Number of tokens to generate.
    pub(super) tokens: usize,
}

/// Runs a conversation through the gateway. The tokens that end an answer are suppressed.
pub(super) fn ask(gateway: &Gateway, question: Question<'_>, messages: Vec<Message>) -> Result<Round, Error> {
    let Question { model, loaded, tokens } = question;
    let suppressed = loaded.package.manifest.stop_tokens();
    let options = GenerateOptions {
        max_tokens: Some(tokens),
        temperature: Some(0.0),
        logit_bias: suppressed.iter().map(|&token| (token, SUPPRESSION)).collect(),
        ..GenerateOptions::api_defaults()
    };
    let request = ChatRequest {
        messages,
        tools: ToolSettings::default(),
        reasoning: ReasoningSettings::default(),
        overflow: HistoryOverflow::Refuse,
        reading: ReadingSettings::default(),
        options,
    };

    let (ends, received) = mpsc::channel();
    round::cool_down();
    let begun = Instant::now();
    gateway.chat(model, request, Box::new(LastEvent { ends }))?;
    let summary = received.recv().map_err(|_| Error::ShuttingDown)??;
    let total = begun.elapsed();
    // Times are missing only for software that stands in for an NPU, which the benchmark refuses.
    let Times { first_token: first, total: end, .. } = summary.times.ok_or(Error::ShuttingDown)?;
    Ok(Round { total, first, rest: end.saturating_sub(first), tokens: summary.completion_tokens })
}

/// Sends the end of a generation.
struct LastEvent {
    ends: mpsc::Sender<Result<Summary, Error>>,
}

impl GenerationSink for LastEvent {
    fn event(&mut self, event: GenerationEvent) -> ControlFlow<()> {
        let end = match event {
            GenerationEvent::Done(summary) => Ok(summary),
            GenerationEvent::Failed { message, .. } => Err(StepError::Device { message }.into()),
            GenerationEvent::Started { .. }
            | GenerationEvent::Text { .. }
            | GenerationEvent::Reasoning { .. }
            | GenerationEvent::ToolCall { .. }
            | GenerationEvent::Finished { .. } => {
                return ControlFlow::Continue(());
            }
        };
        match self.ends.send(end) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_gateway_is_compared_with_the_engine_of_its_own_round() {
        let round = |total: u64, token: u64| Round {
            total: Duration::from_micros(total),
            first: Duration::from_millis(50),
            rest: Duration::from_micros(token * 4),
            tokens: 5,
        };
        // The machine is half as fast in the second round, which does not change the ratio.
        let pairs = [(round(54_000, 1000), round(54_400, 1020)), (round(58_000, 2000), round(58_900, 2040))];
        let requests = [(round(100, 0), round(400, 0)), (round(200, 0), round(900, 0))];
        let found = Overhead::of(256, &pairs, &requests);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} instead of {b}");
        near(found.engine_token_ms.median, 1.5);
        near(found.gateway_token_ms.max, 2.04);
        near(found.token_ratio.min, 1.02);
        near(found.token_ratio.max, 1.02);
        near(found.request_ms.min, 0.3);
        near(found.request_ms.max, 0.7);
    }
}
