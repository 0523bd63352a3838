//! Keyword arguments of calls in Python: parser, grammar and written form.

use serde_json::Value;

use super::{ToolEvent, lark::quoted, literal, push_arguments, schema::parameters, write::python_text};
use crate::{
    exact_json::{ExactContent, ExactJson},
    grammar::{GrammarError, json_rule},
};

/// Result of parsing the arguments of a call, after its opening parenthesis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentStep {
    /// An argument was parsed; it took this many bytes.
    Argument(usize),
    /// The call ended after this many bytes.
    End(usize),
    /// More text is needed.
    Wait,
    /// The text is not an argument.
    Bad,
}

/// Parses the next argument or the end of a call, and reports it as JSON. `is_first` is true before the first argument.
pub(super) fn argument(text: &str, is_first: bool, events: &mut Vec<ToolEvent>) -> ArgumentStep {
    let rest = text.trim_start();
    let space = text.len() - rest.len();
    if rest.is_empty() {
        return ArgumentStep::Wait;
    }
    if rest.starts_with(')') {
        push_arguments(if is_first { "{}" } else { "}" }, events);
        events.push(ToolEvent::End);
        return ArgumentStep::End(space + 1);
    }
    if is_first && b"**".starts_with(&rest.as_bytes()[..rest.len().min(2)]) {
        return dictionary(rest.get(2..).unwrap_or_default(), space + 2, events);
    }

    let Some(equals) = rest.find('=') else {
        let is_key = rest.trim_end().chars().all(|c| c.is_alphanumeric() || c == '_');
        return if is_key { ArgumentStep::Wait } else { ArgumentStep::Bad };
    };
    let key = rest[..equals].trim();
    if !is_keyword(key) {
        return ArgumentStep::Bad;
    }
    let after = &rest[equals + 1..];
    let Some(length) = literal::length(after) else { return wait_or_bad(after) };
    let Some(value) = literal::value(&after[..length]) else { return ArgumentStep::Bad };
    let open = if is_first { "{" } else { ", " };
    push_arguments(&format!("{open}{}: {value}", Value::from(key)), events);
    let comma = usize::from(after[length..].starts_with(','));
    ArgumentStep::Argument(space + equals + 1 + length + comma)
}

/// Reports the beginning of an argument that was cut off. `is_first` is true before the first argument.
pub(super) fn cut_argument(text: &str, is_first: bool, events: &mut Vec<ToolEvent>) {
    let text = text.trim_start();
    if is_first && let Some(dictionary) = text.strip_prefix("**") {
        push_arguments(dictionary.trim_start(), events);
        return;
    }
    let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value)));
    if !is_keyword(key.trim_end()) {
        return;
    }
    let open = if is_first { "{" } else { ", " };
    let key = literal::open_string(key.trim_end());
    let value = value.map_or_else(String::new, |value| format!("\": {}", literal::beginning(value)));
    push_arguments(&format!("{open}{key}{value}"), events);
}

/// Parses all arguments of a call as one dictionary, `**{…})`. `text` starts after the stars, which end at byte
/// `before`.
fn dictionary(text: &str, before: usize, events: &mut Vec<ToolEvent>) -> ArgumentStep {
    match literal::length(text) {
        None => wait_or_bad(text),
        Some(length) => match literal::value(&text[..length]) {
            Some(arguments) if arguments.is_object() && text[length..].starts_with(')') => {
                push_arguments(&arguments.to_string(), events);
                events.push(ToolEvent::End);
                ArgumentStep::End(before + length + 1)
            }
            _ => ArgumentStep::Bad,
        },
    }
}

/// Returns the step for a value without its end.
fn wait_or_bad(text: &str) -> ArgumentStep {
    if literal::may_continue(text) { ArgumentStep::Wait } else { ArgumentStep::Bad }
}

fn is_keyword(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Returns a rule for keyword arguments that are valid under a schema. Values are JSON. Arguments that cannot be
/// keywords are a dictionary.
pub(super) fn keyword_rules(rule: &str, schema: &Value) -> Result<String, GrammarError> {
    let named = parameters(schema).ok();
    let named = named.filter(|named| named.iter().all(|one| is_keyword(&one.name) || !one.is_required));
    let Some(mut named) = named else {
        return Ok(format!("{rule}: \"**\" {rule}_all\n{rule}_all: {}\n", json_rule(schema)?));
    };
    named.retain(|one| is_keyword(&one.name));
    // `first` rules are used before the first argument, `next` rules after one.
    let mut rules = format!("{rule}: {rule}_first_0\n");
    for (at, parameter) in named.iter().enumerate() {
        let item = format!("{rule}_{at}");
        rules.push_str(&format!("{item}: {} {item}_value\n", quoted(&format!("{}=", parameter.name))));
        rules.push_str(&format!("{item}_value: {}\n", json_rule(&parameter.schema)?));
        let after = at + 1;
        for (place, separator) in [("first", ""), ("next", "\", \" ")] {
            let left_out =
                if parameter.is_required { String::new() } else { format!(" | {rule}_{place}_{after}") };
            let rest = format!("{separator}{item} {rule}_next_{after}{left_out}");
            rules.push_str(&format!("{rule}_{place}_{at}: {rest}\n"));
        }
    }
    let end = named.len();
    Ok(rules + &format!("{rule}_first_{end}: \"\"\n{rule}_next_{end}: \"\"\n"))
}

/// Returns true for an identifier of Python.
fn is_identifier(name: &str) -> bool {
    is_keyword(name) && name.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns keyword arguments, or one dictionary if a name is not an identifier of Python.
pub(super) fn keyword_text(arguments: &ExactJson) -> String {
    let tree = arguments.tree();
    match tree.root().content() {
        ExactContent::Object(fields) if fields.iter().all(|(name, _)| is_identifier(name)) => {
            let fields = fields.into_iter().map(|(name, value)| format!("{name}={}", python_text(value)));
            fields.collect::<Vec<_>>().join(", ")
        }
        _ => format!("**{}", python_text(tree.root())),
    }
}
