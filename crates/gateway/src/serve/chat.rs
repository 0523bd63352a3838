//! Chat and text completion: checks a request, makes its prompt, and hands its choices to the engine.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use narthex_engine::{
    executor::Limits,
    request::{LogProbs, Request, Sampling},
    worker::{SequenceHandle, SubmitError},
};
use narthex_spec::TokenId;
use narthex_text::{prompt, template::RenderOptions, tokenizer::Specials};

use crate::{
    error::Error,
    length::Length,
    load::loaded_model::Loaded,
    serve::{
        generation::{Choice, Report, Shared, SharedTurn, Turn, lock},
        request::{ChatRequest, CompletionRequest, Echo, GenerateOptions, Prompt, TurnEvent, TurnSink},
    },
};

/// The most choices of one request.
const MAX_CHOICES: usize = 128;

/// The most stop strings of one request.
const MAX_STOPS: usize = 16;

/// The most alternatives per token.
const MAX_LOGPROBS: usize = 20;

/// Starts a chat answer.
pub(crate) fn chat(
    loaded: &Arc<Loaded>,
    request: ChatRequest,
    date: (i64, u8, u8),
    sink: Box<dyn TurnSink>,
) -> Result<Turn, Error> {
    loaded.engine()?;
    check(&request.options)?;
    if request.messages.is_empty() {
        return Err(Error::invalid("messages", "expected at least one message, found none"));
    }
    let Some(template) = &loaded.template else {
        return Err(Error::invalid(
            "model",
            "this model has no chat template; use /v1/completions, or a chat-tuned model",
        ));
    };
    let options = RenderOptions::answer(date);
    let text = prompt::text(&loaded.tokenizer, template, &request.messages, &options)?;
    let tokens = prompt::with_bos(read(loaded, "messages", &text)?, loaded.manifest.tokenizer.bos);
    submit(loaded, &Asked { tokens, param: "messages", echo: EchoText::None }, &request.options, sink)
}

/// Starts a text completion.
pub(crate) fn complete(
    loaded: &Arc<Loaded>,
    request: CompletionRequest,
    sink: Box<dyn TurnSink>,
) -> Result<Turn, Error> {
    loaded.engine()?;
    check(&request.options)?;
    let tokens = match &request.prompt {
        Prompt::Tokens(tokens) => tokens.clone(),
        Prompt::Text(text) => with_bos(loaded, read(loaded, "prompt", text)?),
    };
    let echo = match (request.echo, request.prompt) {
        (Echo::Completion, _) => EchoText::None,
        (Echo::PromptAndCompletion, Prompt::Text(text)) => EchoText::Text(text),
        (Echo::PromptAndCompletion, Prompt::Tokens(tokens)) => {
            EchoText::Text(loaded.tokenizer.decode(&tokens))
        }
    };
    submit(loaded, &Asked { tokens, param: "prompt", echo }, &request.options, sink)
}

/// Tokens of a prompt's text. One that cannot fit is refused before the work of cutting it.
fn read(loaded: &Loaded, param: &'static str, text: &str) -> Result<Vec<TokenId>, Error> {
    let limits = loaded.engine()?.limits();
    let fewest = loaded.tokenizer.fewest_tokens(text);
    if fewest >= limits.longest() {
        return Err(too_long(param, Length::AtLeast(fewest), limits));
    }
    Ok(loaded.tokenizer.encode(text, Specials::Parse)?)
}

fn with_bos(loaded: &Loaded, tokens: Vec<TokenId>) -> Vec<TokenId> {
    let mut tokens = prompt::with_bos(tokens, loaded.manifest.tokenizer.bos);
    if tokens.is_empty() {
        // An empty prompt means "from the beginning", which models mark with the token that separates documents.
        let start = loaded.manifest.tokenizer.stop.first().copied();
        tokens.extend(start);
    }
    tokens
}

/// The prompt as it is repeated before the completion.
enum EchoText {
    None,
    Text(String),
}

/// A prompt, and where in the request it came from.
struct Asked {
    tokens: Vec<TokenId>,
    param: &'static str,
    echo: EchoText,
}

fn submit(
    loaded: &Arc<Loaded>,
    asked: &Asked,
    options: &GenerateOptions,
    sink: Box<dyn TurnSink>,
) -> Result<Turn, Error> {
    let Asked { tokens, param, echo } = asked;
    let engine = loaded.engine()?;
    let limits = engine.limits();
    check_prompt(tokens, param, limits)?;
    // More than can ever be queued would be refused however often it is tried.
    at_most("n", options.n, loaded.capacity)?;
    let room = limits.longest() - tokens.len();
    let max_tokens = options.max_tokens.unwrap_or(room).min(room);
    let sampling = sampling(options, limits)?;
    let prompt_tokens = tokens.len();
    let shared = Shared::new(sink, options.n, loaded.clone());
    let _ = lock(&shared).send(TurnEvent::Started { prompt_tokens });
    let mut sequences: Vec<SequenceHandle> = Vec::with_capacity(options.n);
    for index in 0..options.n {
        let choice = start_choice(loaded, &shared, index, echo, options);
        let request = Request {
            prompt: tokens.clone(),
            max_tokens,
            stop: loaded.manifest.tokenizer.stop.clone(),
            sampling: Sampling { seed: sampling.seed.wrapping_add(index as u64), ..sampling.clone() },
            logprobs: options.logprobs.map(|top| LogProbs { top, prompt: matches!(echo, EchoText::Text(_)) }),
            sink: Box::new(choice),
        };
        match engine.submit(request) {
            Ok(sequence) => sequences.push(sequence),
            Err(error) => {
                lock(&shared).close();
                sequences.iter().for_each(SequenceHandle::cancel);
                return Err(refused(error, param, limits));
            }
        }
    }
    Ok(Turn { model: loaded.key.name.clone(), prompt_tokens, ran_on: loaded.ran_on(), sequences })
}

fn start_choice(
    loaded: &Loaded,
    shared: &SharedTurn,
    index: usize,
    echo: &EchoText,
    options: &GenerateOptions,
) -> Choice {
    if let EchoText::Text(text) = echo {
        let event = TurnEvent::Text { choice: index, text: text.clone(), tokens: Vec::new() };
        let _ = lock(shared).send(event);
    }
    let report = if options.logprobs.is_some() { Report::LogProbs } else { Report::TextOnly };
    Choice::new(shared.clone(), index, &loaded.tokenizer, &options.stop, report)
}

fn check_prompt(tokens: &[TokenId], param: &'static str, limits: &Limits) -> Result<(), Error> {
    if tokens.is_empty() {
        return Err(Error::invalid(param, "expected at least one token, found an empty prompt"));
    }
    if let Some(bad) = tokens.iter().find(|&&token| token as usize >= limits.vocab) {
        return Err(Error::invalid(
            param,
            format!("token {bad} is not below the vocabulary size {}", limits.vocab),
        ));
    }
    if tokens.len() >= limits.longest() {
        return Err(too_long(param, Length::Counted(tokens.len()), limits));
    }
    Ok(())
}

fn too_long(param: &'static str, prompt: Length, limits: &Limits) -> Error {
    Error::ContextLength { param, prompt, context: limits.longest(), of_model: limits.context }
}

fn refused(error: SubmitError, param: &'static str, limits: &Limits) -> Error {
    match error {
        SubmitError::Overloaded { queued, .. } => {
            Error::Overloaded { queued, retry_after: std::time::Duration::from_secs(1) }
        }
        SubmitError::PromptTooLong { prompt, .. } => too_long(param, Length::Counted(prompt), limits),
        SubmitError::ShutDown => Error::ShuttingDown,
        other => Error::invalid(param, other.to_string()),
    }
}

fn sampling(options: &GenerateOptions, limits: &Limits) -> Result<Sampling, Error> {
    if let Some(bad) = options.logit_bias.keys().find(|&&token| token as usize >= limits.vocab) {
        return Err(Error::invalid(
            "logit_bias",
            format!("token {bad} is not below the vocabulary size {}", limits.vocab),
        ));
    }
    Ok(Sampling {
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p,
        min_p: options.min_p,
        repetition_penalty: options.repetition_penalty,
        presence_penalty: options.presence_penalty,
        frequency_penalty: options.frequency_penalty,
        logit_bias: options.logit_bias.iter().map(|(&token, &bias)| (token, bias)).collect(),
        seed: options.seed.unwrap_or_else(fresh_seed),
    })
}

/// A seed that differs from request to request and from process to process.
fn fresh_seed() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Checks every option against the API's range.
fn check(options: &GenerateOptions) -> Result<(), Error> {
    in_range("temperature", options.temperature, 0.0, 2.0)?;
    in_range("top_p", options.top_p, 0.0, 1.0)?;
    in_range("min_p", options.min_p, 0.0, 1.0)?;
    in_range("presence_penalty", options.presence_penalty, -2.0, 2.0)?;
    in_range("frequency_penalty", options.frequency_penalty, -2.0, 2.0)?;
    in_range("repetition_penalty", options.repetition_penalty, 0.01, 100.0)?;
    for &bias in options.logit_bias.values() {
        in_range("logit_bias", bias, -100.0, 100.0)?;
    }
    at_most("n", options.n, MAX_CHOICES)?;
    at_most("stop", options.stop.len(), MAX_STOPS)?;
    at_most("top_logprobs", options.logprobs.unwrap_or(0), MAX_LOGPROBS)?;
    if options.n == 0 {
        return Err(Error::invalid("n", "expected at least 1, found 0"));
    }
    if options.max_tokens == Some(0) {
        return Err(Error::invalid("max_tokens", "expected at least 1, found 0"));
    }
    if options.stop.iter().any(String::is_empty) {
        return Err(Error::invalid("stop", "expected non-empty strings, found an empty one"));
    }
    Ok(())
}

fn in_range(param: &'static str, found: f32, low: f32, high: f32) -> Result<(), Error> {
    if found >= low && found <= high {
        Ok(())
    } else {
        Err(Error::invalid(param, format!("expected a number from {low} to {high}, found {found}")))
    }
}

fn at_most(param: &'static str, found: usize, limit: usize) -> Result<(), Error> {
    if found <= limit {
        Ok(())
    } else {
        Err(Error::invalid(param, format!("expected at most {limit}, found {found}")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn options_out_of_range_name_their_parameter() {
        let check_refused = |change: fn(&mut GenerateOptions), expected: &str| {
            let mut options = GenerateOptions::api_defaults();
            change(&mut options);
            match check(&options) {
                Err(Error::Invalid { param, message }) => {
                    assert_eq!(param, expected);
                    assert!(message.contains("expected") && message.contains("found"), "{message}");
                }
                other => panic!("{expected}: {other:?}"),
            }
        };
        check(&GenerateOptions::api_defaults()).unwrap();
        check_refused(|o| o.temperature = 2.5, "temperature");
        check_refused(|o| o.temperature = f32::NAN, "temperature");
        check_refused(|o| o.top_p = -0.1, "top_p");
        check_refused(|o| o.n = 0, "n");
        check_refused(|o| o.n = 1000, "n");
        check_refused(|o| o.max_tokens = Some(0), "max_tokens");
        check_refused(|o| o.stop = vec![String::new()], "stop");
        check_refused(|o| o.logprobs = Some(21), "top_logprobs");
        check_refused(|o| o.logit_bias = BTreeMap::from([(1, 101.0)]), "logit_bias");
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(fresh_seed(), fresh_seed());
    }
}
