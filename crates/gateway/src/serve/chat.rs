//! Chat answers and text completions: from a request to the tokens of its prompt.

use narthex_engine::position::Position;
use narthex_spec::{Date, TokenId};
use narthex_text::{
    detokenize::Detokenizer,
    media::{PlacementError, Placements},
    prompt::PromptError,
    template::{Abilities, ChatTemplate, GenerationPrompt, Media, RenderOptions, RenderedPrompt, Role},
    tokenizer::{BoundedTokens, Bounds, Specials, Tokenizer},
    tools::ReasoningParser,
};

use crate::{
    cancel::Cancel,
    error::{Error, TokenCount},
    load::{loaded_model::LoadedModel, residency::ReadyModel},
    serve::{
        answer_rules::AnswerRules,
        generation::{self, Generation, PromptPositions},
        history,
        media::{self, PromptMedia},
        options::{self, Length},
        permits::{self, RENDERINGS},
        reading, remote_media,
        request::{
            ChatPrompt, ChatRequest, CompletionRequest, Echo, GenerateOptions, GenerationSink,
            HistoryOverflow, Message, Prompt, ReasoningSettings, RenderedChat, SpecialTokens,
            TokenizeOptions, ToolSettings,
        },
        tools, videos,
    },
};

/// Length of a conversation, in multiples of the context, from which it is refused without rendering it.
const MAX_CONTEXT_MULTIPLE: usize = 8;

/// Maximum number of tokens of a conversation that is only counted, or the model's context if it is longer.
const MAX_COUNTED: usize = 1 << 18;

/// Maximum bytes of a text that is only tokenized. It is tokenized as a whole, which takes up to 430 times its length in
/// memory and cannot be cancelled once it has started.
const MAX_TOKENIZED: usize = 256 << 10;

/// Maximum bytes of the text of tokens. A server holds several copies until its client has read the answer.
const MAX_DETOKENIZED: usize = 1 << 20;

/// Maximum bytes of the id of a tool call.
const MAX_ID: usize = 256;

/// Requests for text.
impl ReadyModel {
    /// Starts a chat answer. Returns once it is queued.
    pub fn chat(&self, request: ChatRequest, sink: Box<dyn GenerationSink>) -> Result<Generation, Error> {
        let cancel = sink.cancel();
        if self.reads_texts() {
            cancel.check()?;
            return self.read_conversation(request, sink);
        }
        let ChatParts { prompt, mut rules, reasoning, options, omitted_messages } =
            self.chat_parts(request, &cancel)?;
        let model = &*self.loaded;
        let ConversationPrompt { prompt: ChatPrompt { tokens, text }, media } = prompt;
        rules.reasoning = model.reasoning_format().map(|format| ReasoningParser::new(format, &text));
        rules.reasoning_limit = reasoning.limit();
        let (positions, media) = media.positions(model, &tokens, &cancel)?;
        let prompt = PromptPositions { positions, media, param: "messages", echo: None };
        let mut generation = generation::start(self, prompt, &options, rules, sink)?;
        generation.omitted_messages = omitted_messages;
        Ok(generation)
    }

    /// Returns the prompt that [`Self::chat`] would answer, with the same errors. Nothing is generated.
    pub fn render_chat(&self, request: ChatRequest, cancel: &Cancel) -> Result<RenderedChat, Error> {
        // A model of another kind is refused as such, before the settings of the request are.
        self.loaded.engine()?;
        let ChatParts { prompt, options, .. } = self.chat_parts(request, cancel)?;
        let prompt = prompt.prompt;
        generation::check(self, &prompt.tokens, "messages", &options)?;
        Ok(RenderedChat { prompt, reasons: self.loaded.reasoning_format().is_some() })
    }

    /// Checks a request, and returns its prompt and the rules of its answer.
    fn chat_parts(&self, mut request: ChatRequest, cancel: &Cancel) -> Result<ChatParts, Error> {
        cancel.check()?;
        reading::check_absent(&request.reading)?;
        self.settings.answers.add_stop(&mut request.options.stop);
        let model = &*self.loaded;
        options::check(&request.options, Length::Some)?;
        tools::check(&request.tools)?;
        if request.messages.is_empty() {
            return Err(Error::invalid("messages", "expected at least one message, found none"));
        }

        let rules = AnswerRules::new(model, &request.tools, &request.options, cancel)?;
        let ChatRequest { mut messages, tools, reasoning, overflow, options, .. } = request;
        self.prepare_messages(&mut messages, cancel)?;
        let render = render_options(&reasoning);
        let limit = model.engine()?.limits().longest();
        let (prompt, omitted_messages) = match overflow {
            HistoryOverflow::Refuse => (prompt(model, messages, &tools, render, limit, cancel)?, 0),
            HistoryOverflow::OmitOldest => {
                let attempt = |messages: Vec<&Message>, limit| {
                    // Checked before the messages are copied.
                    check_fewest(model, messages.iter().copied(), limit)?;
                    let messages = messages.into_iter().cloned().collect();
                    let prompt = prompt(model, messages, &tools, render.clone(), limit, cancel)?;
                    check_length(model, &prompt.prompt, limit).map(|()| prompt)
                };
                let room = options.max_tokens.unwrap_or(limit).min(limit / 4);
                match history::newest(&messages, |messages| attempt(messages, limit - room)) {
                    // The last turn may leave less room for the answer.
                    Err(Error::ContextLength { .. }) => {
                        history::newest(&messages, |messages| attempt(messages, limit))?
                    }
                    newest => newest?,
                }
            }
        };
        Ok(ChatParts { prompt, rules, reasoning, options, omitted_messages })
    }

    /// Returns the prompt of a conversation with its tools. The generation options are ignored. Ends with
    /// [`Error::Cancelled`] once `cancel` is set.
    pub fn chat_prompt(&self, request: ChatRequest, cancel: &Cancel) -> Result<ChatPrompt, Error> {
        self.chat_prompt_within(request, self.loaded.engine()?.limits().longest(), cancel)
    }

    /// Returns the number of tokens of a conversation with its tools, which may exceed the model's context. Otherwise as
    /// [`Self::chat_prompt`].
    pub fn count_chat_tokens(&self, request: ChatRequest, cancel: &Cancel) -> Result<usize, Error> {
        let limit = self.loaded.engine()?.limits().longest().max(MAX_COUNTED);
        Ok(self.chat_prompt_within(request, limit, cancel)?.tokens.len())
    }

    fn chat_prompt_within(
        &self,
        request: ChatRequest,
        limit: usize,
        cancel: &Cancel,
    ) -> Result<ChatPrompt, Error> {
        cancel.check()?;
        let ChatRequest { mut messages, tools, reasoning, .. } = request;
        self.prepare_messages(&mut messages, cancel)?;
        let options = render_options(&reasoning);
        prompt(&self.loaded, messages, &tools, options, limit, cancel).map(|prompt| prompt.prompt)
    }

    /// Checks and reads the media of a conversation, and adds the instructions of the settings.
    fn prepare_messages(&self, messages: &mut Vec<Message>, cancel: &Cancel) -> Result<(), Error> {
        media::check(&self.loaded, messages)?;
        remote_media::read(self.settings.media_urls, messages, cancel)?;
        videos::take_frames(messages, cancel)?;
        self.settings.answers.add_system(messages);
        Ok(())
    }

    /// Returns the tokens of a text of at most 256 KiB. Ends with [`Error::Cancelled`] if `cancel` is set before it begins.
    pub fn tokenize(
        &self,
        text: &str,
        options: TokenizeOptions,
        cancel: &Cancel,
    ) -> Result<Vec<TokenId>, Error> {
        // A cut could change tokens, so the text is tokenized as a whole, and its length is limited instead.
        if text.len() > MAX_TOKENIZED {
            let found = text.len();
            let message = format!(
                "expected a text of at most {MAX_TOKENIZED} bytes, found {found} bytes; send it in parts"
            );
            return Err(Error::invalid("content", message));
        }
        cancel.check()?;
        let tokenizer = self.loaded.tokenizer()?;
        let manifest = &self.loaded.package.manifest;
        let specials = if options.parse_special { Specials::Parse } else { Specials::AsText };
        let is_encoder = !manifest.architecture.is_decoder();
        let tokens = match options.add_special.unwrap_or(is_encoder) {
            true if is_encoder => tokenizer.encode_with_added(text, specials)?,
            true => narthex_text::prompt::with_bos(tokenizer.encode(text, specials)?, manifest.bos()),
            false => tokenizer.encode(text, specials)?,
        };
        Ok(tokens)
    }

    /// Returns the text of tokens, without special tokens.
    pub fn detokenize(&self, tokens: &[TokenId]) -> Result<String, Error> {
        self.text_bytes(tokens)?;
        Ok(self.loaded.tokenizer()?.decode(tokens))
    }

    /// Returns the number of bytes of the tokens. Their text has at most three times as many, because each invalid byte
    /// becomes a character of three bytes. Fails if there are too many.
    pub fn text_bytes(&self, tokens: &[TokenId]) -> Result<usize, Error> {
        let tokenizer = self.loaded.tokenizer()?;
        if let Some(bad) = tokens.iter().find(|&&token| token as usize >= tokenizer.vocab_size()) {
            let message = format!("token {bad} is not below the vocabulary size {}", tokenizer.vocab_size());
            return Err(Error::invalid("tokens", message));
        }
        let bytes: usize = tokens.iter().map(|&token| tokenizer.token_bytes(token).len()).sum();
        if bytes > MAX_DETOKENIZED {
            let message = format!(
                "expected tokens with a text of at most {MAX_DETOKENIZED} bytes, found {bytes} bytes; send them in parts"
            );
            return Err(Error::invalid("tokens", message));
        }
        Ok(bytes)
    }

    /// Starts a text completion. Returns once it is queued.
    pub fn complete(
        &self,
        mut request: CompletionRequest,
        sink: Box<dyn GenerationSink>,
    ) -> Result<Generation, Error> {
        let cancel = sink.cancel();
        let (tokens, rules) = self.completion_parts(&mut request, &cancel)?;
        let model = &*self.loaded;
        let echo = match (request.echo, request.prompt) {
            (Echo::Completion, _) => None,
            (Echo::PromptAndCompletion, Prompt::Text(text)) => Some(text),
            (Echo::PromptAndCompletion, Prompt::Tokens(tokens)) => {
                let detokenizer = Detokenizer::new(model.tokenizer()?.clone());
                Some(match request.options.special_tokens {
                    SpecialTokens::Skip => detokenizer.whole(&tokens),
                    SpecialTokens::Show => detokenizer.showing_all().whole(&tokens),
                })
            }
        };

        let positions = Position::of_tokens(&tokens);
        let prompt = PromptPositions { positions, media: Vec::new(), param: "prompt", echo };
        generation::start(self, prompt, &request.options, rules, sink)
    }

    /// Returns the tokens that [`Self::complete`] would continue, with the same errors. Nothing is generated.
    pub fn render_completion(
        &self,
        mut request: CompletionRequest,
        cancel: &Cancel,
    ) -> Result<Vec<TokenId>, Error> {
        let (tokens, _) = self.completion_parts(&mut request, cancel)?;
        generation::check(self, &tokens, "prompt", &request.options)?;
        Ok(tokens)
    }

    /// Checks a request, and returns the tokens of its prompt and the rules of its completion.
    fn completion_parts(
        &self,
        request: &mut CompletionRequest,
        cancel: &Cancel,
    ) -> Result<(Vec<TokenId>, AnswerRules), Error> {
        cancel.check()?;
        self.settings.answers.add_stop(&mut request.options.stop);
        let model = &*self.loaded;
        let length = if request.echo == Echo::PromptAndCompletion { Length::None } else { Length::Some };
        options::check(&request.options, length)?;
        let tokens = match &request.prompt {
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Text(text) => {
                let limit = model.engine()?.limits().longest();
                with_start(model, tokenize(model, "prompt", text, limit, cancel)?)
            }
        };
        let rules = AnswerRules::new(model, &ToolSettings::default(), &request.options, cancel)?;
        Ok((tokens, rules))
    }
}

fn render_options(reasoning: &ReasoningSettings) -> RenderOptions {
    RenderOptions {
        generation_prompt: reasoning.generation_prompt(),
        variables: reasoning.template_variables(),
        ..RenderOptions::answer(Date::today())
    }
}

/// Fails if a conversation is so long that its prompt must have `limit` or more tokens. A template may omit parts of a long
/// history, but not most of it.
fn check_fewest<'a>(
    model: &LoadedModel,
    messages: impl IntoIterator<Item = &'a Message>,
    limit: usize,
) -> Result<(), Error> {
    let tokenizer = model.tokenizer()?;
    let texts = messages.into_iter().map(|message| message.content.text());
    let fewest: usize = texts.map(|text| tokenizer.min_tokens(&text)).sum();
    if fewest / MAX_CONTEXT_MULTIPLE < limit {
        return Ok(());
    }
    Err(generation::prompt_too_long("messages", TokenCount::AtLeast(fewest), model.engine()?.limits()))
}

/// Fails if a prompt has `limit` or more tokens.
fn check_length(model: &LoadedModel, prompt: &ChatPrompt, limit: usize) -> Result<(), Error> {
    let tokens = prompt.tokens.len();
    if tokens < limit {
        return Ok(());
    }
    Err(generation::prompt_too_long("messages", TokenCount::Exact(tokens), model.engine()?.limits()))
}

/// Parts of a chat answer before it starts.
struct ChatParts {
    prompt: ConversationPrompt,
    rules: AnswerRules,
    reasoning: ReasoningSettings,
    options: GenerateOptions,
    omitted_messages: usize,
}

/// A prompt and the media in it.
struct ConversationPrompt {
    prompt: ChatPrompt,
    media: PromptMedia,
}

/// Returns the prompt of a conversation. Fails if it is certain that it has `limit` or more tokens before it is tokenized
/// completely.
fn prompt(
    model: &LoadedModel,
    mut messages: Vec<Message>,
    settings: &ToolSettings,
    mut options: RenderOptions,
    limit: usize,
    cancel: &Cancel,
) -> Result<ConversationPrompt, Error> {
    let tokenizer = model.tokenizer()?;
    let Some(template) = &model.template else {
        return Err(Error::invalid(
            "model",
            "this model has no chat template; use /v1/completions, or a chat-tuned model",
        ));
    };

    check_ids(&messages)?;
    check_fewest(model, &messages, limit)?;
    let continued = take_continued(&mut messages, &mut options)?;
    let permit = RENDERINGS.take(1, cancel)?;
    let separator = continued.as_ref().and_then(|_| template.answer_separator(&options));
    let media: Vec<Media> = messages.iter().flat_map(|message| message.content.media().cloned()).collect();
    let rendered = render(model, template, messages, settings, options)?;
    drop(permit);

    let towers = model.towers();
    let spans = media.iter().filter_map(|media| Some(towers.reader(media.kind())?.spans(media)));
    let spans = spans.collect::<Result<Vec<_>, Error>>()?;
    let placements = Placements::new(tokenizer, towers.placeholders(), &spans).map_err(unplaced)?;
    if placements.rows() >= limit {
        let rows = TokenCount::AtLeast(placements.rows());
        return Err(generation::prompt_too_long("messages", rows, model.engine()?.limits()));
    }
    let mut rendered = placements.expand(rendered).map_err(unplaced)?;

    if let Some(text) = continued {
        // The continued text is an answer, so a block of reasoning before it must be closed.
        let parser = model.reasoning_format().map(|format| ReasoningParser::new(format, rendered.text()));
        if let Some(parser) = parser.filter(ReasoningParser::is_inside) {
            rendered.append_written(&format!("\n{}\n\n", parser.markers().1));
        } else if let Some(separator) = separator {
            rendered.append_written(&separator);
        }
        rendered.append(&text);
    }

    cancel.check()?;
    let shielded = tokenizer.shield_outside(rendered.text(), rendered.written());
    let tokens = tokenize(model, "messages", &shielded, limit, cancel)?;
    let tokens = narthex_text::prompt::with_bos(tokens, model.package.manifest.bos());
    let (tokens, runs) = placements.place(tokens).map_err(unplaced)?;
    let prompt = ChatPrompt { text: rendered.into_text(), tokens };
    Ok(ConversationPrompt { prompt, media: PromptMedia { media, runs } })
}

/// Returns the error of a conversation whose media have no place in the prompt.
fn unplaced(error: PlacementError) -> Error {
    Error::invalid("messages", error)
}

/// Removes the last message if the answer continues it, and returns its text.
fn take_continued(messages: &mut Vec<Message>, options: &mut RenderOptions) -> Result<Option<String>, Error> {
    let continues = options.variables.remove(ReasoningSettings::CONTINUE).is_some_and(|value| value == true);
    if !continues {
        return Ok(None);
    }
    match messages.as_slice() {
        [.., _, last]
            if last.role == Role::Assistant && last.tool_calls.is_empty() && !last.content.has_media() =>
        {
            options.generation_prompt = GenerationPrompt::Add;
            Ok(messages.pop().map(|last| last.content.text().into_owned()))
        }
        _ => {
            let message = "expected a text of the assistant as the last message, after another message";
            Err(Error::invalid(ReasoningSettings::CONTINUE, message))
        }
    }
}

/// Renders a conversation. Tools and calls that the template cannot write are passed to it as text.
fn render(
    model: &LoadedModel,
    template: &ChatTemplate,
    messages: Vec<Message>,
    settings: &ToolSettings,
    options: RenderOptions,
) -> Result<RenderedPrompt, PromptError> {
    let attempt = |messages, abilities| {
        let mut options = RenderOptions { tools: tools::declarations(settings), ..options.clone() };
        let choice = &settings.choice;
        let messages =
            tools::conversation(messages, &mut options.tools, choice, model.tool_format, abilities);
        template.render(&messages, &options)
    };
    let has_tools = !settings.tools.is_empty() || messages.iter().any(|one| !one.tool_calls.is_empty());
    if !has_tools || !model.template_abilities.tools {
        return Ok(attempt(messages, model.template_abilities)?);
    }
    let first = match attempt(messages.clone(), model.template_abilities) {
        Ok(rendered) => return Ok(rendered),
        Err(error) => error,
    };
    Ok(attempt(messages, Abilities::default()).map_err(|_| first)?)
}

/// Fails if the id of a tool call is too long.
fn check_ids(messages: &[Message]) -> Result<(), Error> {
    for (index, message) in messages.iter().enumerate() {
        let ids = message.tool_calls.iter().filter_map(|call| call.id.as_ref()).chain(&message.tool_call_id);
        if let Some(long) = ids.into_iter().find(|id| id.len() > MAX_ID) {
            let found = long.len();
            let message =
                format!("message {index}: expected ids of at most {MAX_ID} bytes, found one of {found}");
            return Err(Error::invalid("messages", message));
        }
    }
    Ok(())
}

/// Tokenizes a prompt. Refuses a text with `limit` or more tokens before it is tokenized completely. Stops when the request
/// is cancelled.
fn tokenize(
    model: &LoadedModel,
    param: &'static str,
    text: &str,
    limit: usize,
    cancel: &Cancel,
) -> Result<Vec<TokenId>, Error> {
    let engine = model.engine()?;
    let tokenizer = model.tokenizer()?;
    let fewest = tokenizer.min_tokens(text);
    if fewest >= limit {
        return Err(generation::prompt_too_long(param, TokenCount::AtLeast(fewest), engine.limits()));
    }
    match encode(tokenizer, text, limit, cancel)? {
        BoundedTokens::Whole(tokens) => Ok(tokens),
        BoundedTokens::Beginning(_) | BoundedTokens::TooManyBytes => {
            let more = TokenCount::AtLeast(limit + 1);
            Err(generation::prompt_too_long(param, more, engine.limits()))
        }
    }
}

/// Tokenizes a text up to a limit, once there is memory for it.
fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    limit: usize,
    cancel: &Cancel,
) -> Result<BoundedTokens<Vec<TokenId>>, Error> {
    let bounds = Bounds { limit, is_cancelled: &|| cancel.is_cancelled() };
    let _permit = permits::tokenizing(text.len().min(bounds.max_bytes()), cancel)?;
    Ok(tokenizer.encode_prompt_within(text, bounds)?)
}

/// Adds the start token. An empty prompt begins with the token that separates documents.
fn with_start(model: &LoadedModel, tokens: Vec<TokenId>) -> Vec<TokenId> {
    let manifest = &model.package.manifest;
    let mut tokens = narthex_text::prompt::with_bos(tokens, manifest.bos());
    if tokens.is_empty() {
        tokens.extend(manifest.stop_tokens().first());
    }
    tokens
}

#[cfg(test)]
mod tests {
    use std::thread;

    use narthex_text::{template::ToolCall, tokenizer::GgufVocab};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_text_waits_for_the_memory_of_others() {
        let (model, types) = ("gpt2".to_owned(), Some(vec![1]));
        let tokens = vec!["a".to_owned()];
        let vocab =
            GgufVocab { model, pre: Some("smollm".to_owned()), types, tokens, ..GgufVocab::default() };
        let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
        let encode =
            |length: usize, cancel: &Cancel| super::encode(&tokenizer, &"a".repeat(length), 1 << 20, cancel);
        let cancel = Cancel::new();
        let all = permits::tokenizing(usize::MAX, &cancel).ok().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| encode(100_000, &cancel));
            while permits::waiting_long_texts() == 0 {
                thread::yield_now();
            }
            assert!(
                matches!(encode(1000, &Cancel::new()), Ok(BoundedTokens::Whole(tokens)) if tokens.len() == 1000)
            );
            cancel.cancel();
            assert!(matches!(waits.join().unwrap(), Err(Error::Cancelled)));
        });
        drop(all);
        assert!(matches!(encode(100_000, &Cancel::new()), Ok(BoundedTokens::Whole(_))));
    }

    #[test]
    fn an_answer_continues_a_text_of_the_assistant() {
        let message = |role| Message::new(role, "a".to_owned());
        let take = |messages: &mut Vec<Message>, continues: bool| {
            let mut options = RenderOptions::answer(Date::today());
            options.generation_prompt = GenerationPrompt::Leave;
            options.variables.insert("continue_final_message".to_owned(), json!(continues));
            let taken = take_continued(messages, &mut options).map_err(|error| error.to_string());
            assert!(options.variables.is_empty());
            (taken, options.generation_prompt)
        };
        let mut both = vec![message(Role::User), message(Role::Assistant)];
        assert_eq!(take(&mut both, false), (Ok(None), GenerationPrompt::Leave));
        assert_eq!(take(&mut both, true), (Ok(Some("a".to_owned())), GenerationPrompt::Add));
        assert_eq!(both, [message(Role::User)]);
        let function =
            narthex_text::template::FunctionCall { name: "f".to_owned(), arguments: json!({}).into() };
        let tool_calls = vec![ToolCall { id: None, function }];
        let calls = Message { tool_calls, ..message(Role::Assistant) };
        for last in [message(Role::User), calls] {
            assert!(take(&mut vec![message(Role::User), last], true).0.is_err());
        }
        assert!(take(&mut vec![message(Role::Assistant)], true).0.is_err());
    }

    #[test]
    fn ids_of_calls_have_a_maximum_length() {
        let result = |length: usize| {
            let message = Message::new(Role::Tool, String::new());
            [Message { tool_call_id: Some("x".repeat(length)), ..message }]
        };
        check_ids(&result(MAX_ID)).unwrap();
        let error = check_ids(&result(MAX_ID + 1)).unwrap_err();
        assert!(error.param() == Some("messages") && error.to_string().contains("found"), "{error}");
    }
}
