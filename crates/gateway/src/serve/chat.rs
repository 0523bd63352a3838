//! Chat answers and text completions: from a request to the tokens of its prompt.

use std::sync::Arc;

use narthex_spec::TokenId;
use narthex_text::{
    prompt,
    template::RenderOptions,
    tokenizer::{Bounds, Encoded},
};

use crate::{
    error::{Error, TokenCount},
    load::loaded_model::LoadedModel,
    serve::{
        generation::{self, Generation, PromptTokens},
        options,
        request::{ChatRequest, CompletionRequest, Echo, GenerationSink, Prompt},
    },
};

/// Length of a conversation, in multiples of the context, from which it is refused before it is rendered.
const LEFT_OUT: usize = 8;

/// Starts a chat answer. `date` is today's year, month and day, for templates that print it.
pub(crate) fn chat(
    model: &Arc<LoadedModel>,
    request: ChatRequest,
    date: (i64, u8, u8),
    sink: Box<dyn GenerationSink>,
) -> Result<Generation, Error> {
    if sink.is_closed() {
        return Err(Error::Cancelled);
    }
    let engine = model.engine()?;
    options::check(&request.options)?;
    if request.messages.is_empty() {
        return Err(Error::invalid("messages", "expected at least one message, found none"));
    }
    let Some(template) = &model.template else {
        return Err(Error::invalid(
            "model",
            "this model has no chat template; use /v1/completions, or a chat-tuned model",
        ));
    };
    let options = RenderOptions::answer(date);
    let contents = request.messages.iter().map(|message| message.content.as_str());
    let fewest: usize = contents.map(|text| model.package.tokenizer.fewest_tokens(text)).sum();
    // A template may leave out parts of a long history, but not most of it.
    if fewest / LEFT_OUT >= engine.limits().longest() {
        return Err(generation::prompt_too_long("messages", TokenCount::AtLeast(fewest), engine.limits()));
    }
    let text = prompt::text(&model.package.tokenizer, template, &request.messages, &options)?;
    let tokens = tokenize(model, "messages", &text, &*sink)?;
    let tokens = prompt::with_bos(tokens, model.package.manifest.tokenizer.bos);
    let prompt = PromptTokens { tokens, param: "messages", echo: None };
    generation::start(model, prompt, &request.options, sink)
}

/// Starts a text completion.
pub(crate) fn complete(
    model: &Arc<LoadedModel>,
    request: CompletionRequest,
    sink: Box<dyn GenerationSink>,
) -> Result<Generation, Error> {
    if sink.is_closed() {
        return Err(Error::Cancelled);
    }
    options::check(&request.options)?;
    let tokens = match &request.prompt {
        Prompt::Tokens(tokens) => tokens.clone(),
        Prompt::Text(text) => with_start(model, tokenize(model, "prompt", text, &*sink)?),
    };
    let echo = match (request.echo, request.prompt) {
        (Echo::Completion, _) => None,
        (Echo::PromptAndCompletion, Prompt::Text(text)) => Some(text),
        (Echo::PromptAndCompletion, Prompt::Tokens(tokens)) => Some(model.package.tokenizer.decode(&tokens)),
    };
    let prompt = PromptTokens { tokens, param: "prompt", echo };
    generation::start(model, prompt, &request.options, sink)
}

/// Tokenises a prompt. Refuses a text that cannot fit before the work of tokenising all of it, and stops once nobody reads
/// the answer.
fn tokenize(
    model: &LoadedModel,
    param: &'static str,
    text: &str,
    sink: &dyn GenerationSink,
) -> Result<Vec<TokenId>, Error> {
    let engine = model.engine()?;
    let tokenizer = &model.package.tokenizer;
    let fewest = tokenizer.fewest_tokens(text);
    if fewest >= engine.limits().longest() {
        return Err(generation::prompt_too_long(param, TokenCount::AtLeast(fewest), engine.limits()));
    }
    let bounds = Bounds { limit: engine.limits().longest(), is_cancelled: &|| sink.is_closed() };
    match tokenizer.encode_within(text, bounds)? {
        Encoded::Whole(tokens) => Ok(tokens),
        Encoded::Beginning(_) => {
            let more = TokenCount::AtLeast(bounds.limit + 1);
            Err(generation::prompt_too_long(param, more, engine.limits()))
        }
    }
}

/// Adds the start token. An empty prompt begins with the token that separates documents.
fn with_start(model: &LoadedModel, tokens: Vec<TokenId>) -> Vec<TokenId> {
    let tokenizer = &model.package.manifest.tokenizer;
    let mut tokens = prompt::with_bos(tokens, tokenizer.bos);
    if tokens.is_empty() {
        tokens.extend(tokenizer.stop.first());
    }
    tokens
}
