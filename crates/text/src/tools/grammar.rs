//! Grammars that guarantee tool calls. The rules of each format are in `formats`; this file combines them into the
//! grammar of an answer.

use narthex_spec::{ReasoningFormat, ToolFormat};

use super::{
    CallLimit, formats,
    harmony_messages::{CHANNEL, END, MESSAGE},
    lark::{AllowedCalls, Callable, Markers},
};
use crate::{
    grammar::{Grammar, GrammarError},
    tokenizer::Tokenizer,
};

/// Content that an answer may have besides calls.
#[derive(Debug, Clone, Copy)]
pub enum ContentRule<'a> {
    /// Nothing: the answer consists of calls.
    Nothing,
    /// Any text, in which every call is valid.
    Text,
    /// Nothing, or instead of calls a text of a grammar.
    Content(&'a Grammar),
}

/// Returns the grammar of an answer that has the text of a grammar and no calls.
///
/// # Errors
/// The grammar is too large.
pub fn content_grammar(
    tokenizer: &Tokenizer,
    format: ToolFormat,
    grammar: &Grammar,
) -> Result<Grammar, GrammarError> {
    let head = (formats::definition(format).options.content_head)(&Markers(tokenizer));
    match head.is_empty() {
        true => Ok(grammar.clone()),
        false => Ok(Grammar::Lark(format!("start: {head} content\ncontent: {}\n", grammar.rule()?))),
    }
}

/// Returns the grammar of an answer with a message of reasoning before what a grammar allows, for a format whose reasoning
/// is a message; `None` for others.
///
/// # Errors
/// The grammar is too large.
pub fn with_reasoning_message(
    tokenizer: &Tokenizer,
    format: ReasoningFormat,
    grammar: &Grammar,
) -> Result<Option<Grammar>, GrammarError> {
    if format != ReasoningFormat::Harmony {
        return Ok(None);
    }
    let markers = Markers(tokenizer);
    let [channel, message, end] = [CHANNEL, MESSAGE, END].map(|marker| markers.item(marker));
    Ok(Some(Grammar::Lark(format!(
        "start: reasoning? answer\nreasoning: {channel} \"analysis\" {message} THOUGHT {end}\nTHOUGHT: /(\\n|.)*/\n\
         answer: {}\n",
        grammar.rule()?
    ))))
}

/// Returns the grammar of answers with calls of these functions.
///
/// # Errors
/// A schema cannot be enforced in this format.
pub fn call_grammar(
    tokenizer: &Tokenizer,
    format: ToolFormat,
    functions: &[Callable<'_>],
    limit: CallLimit,
    beside: ContentRule<'_>,
) -> Result<Grammar, GrammarError> {
    let allowed = AllowedCalls { functions, limit, markers: Markers(tokenizer) };
    let rules = (formats::definition(format).rules)(&allowed)?;
    let start = match beside {
        ContentRule::Nothing => "start: calls\n".to_owned(),
        ContentRule::Text => rules.text(&allowed),
        ContentRule::Content(grammar) => {
            let head = rules.head.as_ref().map_or_else(String::new, |head| format!("{head} "));
            let content = (formats::definition(format).options.content_head)(&allowed.markers);
            format!("start: {head}calls | content\ncontent: {content} {}\n", grammar.rule()?)
        }
    };
    Ok(Grammar::Lark(start + &rules.rules))
}
