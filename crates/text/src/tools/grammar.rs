//! Grammars that guarantee tool calls. The rules of each format are in `formats`; this file combines them into the
//! grammar of an answer.

use narthex_spec::ToolFormat;

use super::{
    CallLimit, formats,
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
            format!("start: {head}calls | content\ncontent: {}\n", grammar.rule()?)
        }
    };
    Ok(Grammar::Lark(start + &rules.rules))
}
