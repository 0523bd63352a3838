//! Rules for the text of the answers to a request.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use narthex_text::{
    exact_json::ExactJson,
    grammar::{CompileScope, GrammarError, GrammarMatcher},
    tokenizer::Tokenizer,
    tools::{CallReading, ReasoningParser, with_reasoning_message},
};
use serde_json::Value;

use crate::{
    cancel::Cancel,
    error::Error,
    load::loaded_model::LoadedModel,
    serve::{
        permits::GRAMMARS,
        request::{GenerateOptions, Grammar, RequestGrammar, ToolChoice, ToolSettings},
        tools::{self, CallRules},
    },
};

/// Maximum time for compiling the grammars of a request.
const COMPILE_TIME: Duration = Duration::from_secs(20);

/// Rules for the text of the answers.
#[derive(Default)]
pub(super) struct AnswerRules {
    /// The grammar at its beginning.
    pub(super) grammar: Option<GrammarMatcher>,
    /// Rules of tool calls; `None` if the answers have none.
    pub(super) calls: Option<CallRules>,
    /// The parser of reasoning at its beginning; `None` if the model does not reason.
    pub(super) reasoning: Option<ReasoningParser>,
    /// Maximum number of tokens of reasoning.
    pub(super) reasoning_limit: Option<usize>,
}

impl AnswerRules {
    /// Returns the rules of an answer with these tools. Waits for a permit if it compiles a grammar.
    pub(super) fn new(
        model: &LoadedModel,
        tools: &ToolSettings,
        options: &GenerateOptions,
        cancel: &Cancel,
    ) -> Result<Self, Error> {
        check_grammar(tools, options)?;
        let tokenizer = model.tokenizer()?;
        let compiles = options.grammar.is_some() || tools::guarantees_calls(tools);
        let permit = if compiles { Some(GRAMMARS.take(1, cancel)?) } else { None };
        let begun = Instant::now();
        let is_needed = || !cancel.is_cancelled() && begun.elapsed() < COMPILE_TIME;
        let permit = permit.map(|permit| Arc::new(permit) as Arc<dyn Send + Sync>);
        let scope = CompileScope { is_needed: &is_needed, permit };

        let grammar = match compile(model, tokenizer, tools, options, &scope) {
            Err(GrammarError::Thread(error)) => return Err(error.into()),
            Err(GrammarError::Unneeded) if cancel.is_cancelled() => return Err(Error::Cancelled),
            // The schema of a tool without a guarantee is no reason to refuse a request.
            Err(error) => {
                let open = tools::with_open_schemas(tools);
                match open.map(|open| compile(model, tokenizer, &open, options, &scope)) {
                    Some(Ok(grammar)) => grammar,
                    Some(Err(_)) | None => {
                        return Err(grammar_refusal(model, tools, options, error, &scope));
                    }
                }
            }
            Ok(grammar) => grammar,
        };

        let declarations: Vec<Value> =
            tools::declarations(tools).into_iter().map(ExactJson::into_value).collect();
        let calls = (!declarations.is_empty()).then(|| CallRules {
            format: model.tool_format,
            tools: declarations,
            limit: tools.calls,
            ends_at_repetition: tools.choice == ToolChoice::Required,
            // If the model chooses between text and calls, their form is that of the model. Otherwise the answer has calls
            // only where the grammar guarantees them.
            reading: match (&tools.choice, &options.grammar) {
                (ToolChoice::Auto, None) => CallReading::Lenient,
                _ => CallReading::Exact,
            },
        });
        Ok(Self { grammar, calls, ..Self::default() })
    }
}

/// Fails if there are both a grammar and calls that must be valid. A grammar might allow other texts that are read as
/// calls. A schema does not, and required calls leave no text for it.
fn check_grammar(tools: &ToolSettings, options: &GenerateOptions) -> Result<(), Error> {
    let own = options.grammar.as_ref().filter(|own| !matches!(own.grammar, Grammar::JsonSchema(_)));
    let Some(&RequestGrammar { field, .. }) = own.filter(|_| tools::guarantees_calls(tools)) else {
        return Ok(());
    };
    let message = format!(
        "{field} cannot be combined with tools that have strict: true, nor with a tool_choice that requires a call; \
         remove {field} or tools, or send tool_choice: \"none\" or a response_format"
    );
    Err(Error::Grammar { field: field.into(), message })
}

/// Maximum number of tools that are compiled alone to find the one that is refused.
const MAX_TRIED: usize = 16;

/// Compiles the grammar of answers with these tools, if they have one.
fn compile(
    model: &LoadedModel,
    tokenizer: &Tokenizer,
    tools: &ToolSettings,
    options: &GenerateOptions,
    scope: &CompileScope<'_>,
) -> Result<Option<GrammarMatcher>, GrammarError> {
    let content = options.grammar.as_ref().map(|own| &own.grammar);
    let mut grammar = tools::answer_grammar(tools, model.tool_format, tokenizer, content)?;
    if let (Some(answer), Some(format)) = (&grammar, model.reasoning_format()) {
        grammar = with_reasoning_message(tokenizer, format, answer)?.or(grammar);
    }
    grammar.map(|grammar| model.compile_grammar(&grammar, scope)).transpose()
}

/// Returns the error of a grammar that was refused. With tools, it names the first part that is refused when it is compiled
/// alone.
fn grammar_refusal(
    model: &LoadedModel,
    tools: &ToolSettings,
    options: &GenerateOptions,
    error: GrammarError,
    scope: &CompileScope<'_>,
) -> Error {
    let alone = |grammar: &Grammar| {
        let error = model.compile_grammar(grammar, scope).err();
        error.filter(|error| *error != GrammarError::Unneeded)
    };
    let mut tried = tools
        .tools
        .iter()
        .filter(|tool| !matches!(&tools.choice, ToolChoice::Function(name) if *name != tool.name))
        .take(MAX_TRIED)
        .take_while(|_| (scope.is_needed)());

    let own = options.grammar.as_ref();
    let (field, place, error) = match error {
        GrammarError::Thread(error) => return error.into(),
        error if tools.tools.is_empty() => {
            (Cow::Borrowed(own.map_or("response_format", |own| own.field)), String::new(), error)
        }
        error => own
            .and_then(|own| Some((Cow::Borrowed(own.field), String::new(), alone(&own.grammar)?)))
            .or_else(|| {
                tried.find_map(|tool| {
                    let error = match tools::enforced_schema(tool) {
                        Ok(schema) => alone(&Grammar::JsonSchema(schema.into_owned()))?,
                        Err(error) => error,
                    };
                    let field = tool.field.clone().map_or(Cow::Borrowed("tools"), Cow::Owned);
                    Some((field, format!("tool {}: ", tool.name), error))
                })
            })
            .unwrap_or((Cow::Borrowed("tools"), String::new(), error)),
    };

    match error {
        GrammarError::Thread(error) => error.into(),
        error => Error::Grammar { field, message: format!("{place}{error}") },
    }
}
