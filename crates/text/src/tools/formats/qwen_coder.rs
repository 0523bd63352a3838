//! Qwen3 Coder's calls: tags for the function and for each parameter, whose values are plain text.

use std::{collections::HashMap, mem};

use serde_json::Value;

use super::FormatDefinition;
use crate::{
    grammar::{GrammarError, json_rule, whole_expression},
    template::FunctionCall,
    tools::{
        CallSyntax, MAX_CALL, TextEnd, ToolEvent,
        lark::{AllowedCalls, FormatRules, one_of, quoted, repeated},
        literal, overlap, push_arguments, push_text,
        schema::{ValueKinds, parameters},
        write::{json_text, write_marked},
    },
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "\n</parameter>";

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains(FUNCTION) && template.contains(PARAMETER),
    markers: &[OPEN, CLOSE],
    parser: |tools, _| Box::new(QwenCoderCalls::new(tools)),
    rules,
    write: |calls, message| write_marked(calls, message, [OPEN, CLOSE], function_text),
    adapt_ids: |_| (),
    #[cfg(test)]
    examples: tests::examples,
};

/// Parser of calls in tags.
#[derive(Debug)]
struct QwenCoderCalls {
    /// Schemas of parameters, by function and parameter.
    schemas: HashMap<(String, String), Value>,
    held: String,
    raw: String,
    state: TagState,
    function: String,
    is_first: bool,
    calls: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagState {
    Text,
    /// Before `<function=NAME>`.
    Function,
    /// Before a parameter or the end.
    Parameter,
    /// Before `</tool_call>`.
    End,
}

/// Returns a call with a tag for each parameter.
fn function_text(call: &FunctionCall) -> String {
    let mut text = format!("\n{FUNCTION}{}>\n", call.name);
    for (name, value) in call.arguments.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| json_text(value), str::to_owned);
        text.push_str(&format!("{PARAMETER}{name}>\n{value}{END_PARAMETER}\n"));
    }
    text + END_FUNCTION + "\n"
}

fn rules(allowed: &AllowedCalls<'_>) -> Result<FormatRules, GrammarError> {
    let (open, close) = (allowed.markers.item(OPEN), allowed.markers.item(CLOSE));
    let mut rules = format!(
        "calls: {}\ncall: {open} body\nbody: \"\\n\" function \"\\n\" {close}\nfunction: {}\n",
        repeated("call", "\n", allowed.limit),
        one_of("function", allowed.functions.len()),
    );
    rules.push_str("text_value[lazy]: VALUE \"\\n</parameter>\"\nVALUE: /(\\n|.)*/\n");
    for (index, function) in allowed.functions.iter().enumerate() {
        let refused = |keyword: String| GrammarError::UnsupportedKeywords { keywords: keyword };
        let head = quoted(&format!("{FUNCTION}{}>\n", function.name));
        let mut items = String::new();
        for (at, parameter) in parameters(function.parameters).map_err(refused)?.into_iter().enumerate() {
            let rule = format!("parameter_{index}_{at}");
            let name = parameter.name;
            if name.is_empty() || name.contains(['>', '\n']) {
                return Err(refused(format!("properties.{name}")));
            }
            items.push_str(&format!(" {rule}{}", if parameter.is_required { "" } else { "?" }));
            let value = value_rule(&rule, &parameter.schema).map_err(|error| match error {
                ValueError::Keyword(keyword) => refused(format!("properties.{name}.{keyword}")),
                ValueError::Grammar(error) => error,
            })?;
            let start = quoted(&format!("{PARAMETER}{name}>\n"));
            rules.push_str(&format!("{rule}: {start} {rule}_value \"\\n\"\n{value}"));
        }
        rules.push_str(&format!("function_{index}: {head}{items} {}\n", quoted(END_FUNCTION)));
    }
    Ok(FormatRules { rules, markers: &[OPEN], bare: None, head: None })
}

/// Reason why a value cannot be guaranteed.
enum ValueError {
    Keyword(String),
    Grammar(GrammarError),
}

/// Returns the rule of a parameter's value and of the end of its tag. Strings are plain text, other values are JSON.
fn value_rule(rule: &str, schema: &Value) -> Result<String, ValueError> {
    let kinds = ValueKinds::of(schema);
    if kinds == ValueKinds::Others {
        let json = json_rule(schema).map_err(ValueError::Grammar)?;
        let end = quoted(END_PARAMETER);
        return Ok(format!("{rule}_value: {rule}_json {end}\n{rule}_json: {json}\n"));
    }
    let listed = schema["enum"].as_array().map(Vec::as_slice);
    let listed = listed.or(schema.get("const").map(std::slice::from_ref));
    let mut keywords = schema.as_object().into_iter().flat_map(|fields| fields.keys());
    match listed {
        Some(values) if kinds == ValueKinds::Strings => {
            let texts = values.iter().filter_map(Value::as_str);
            let texts: Vec<String> = texts.map(|text| quoted(&format!("{text}{END_PARAMETER}"))).collect();
            Ok(format!("{rule}_value: {}\n", texts.join(" | ")))
        }
        _ => {
            let pattern = schema["pattern"].as_str().filter(|_| kinds == ValueKinds::Strings);
            let pattern = pattern.and_then(whole_expression);
            let is_known = |key: &str| {
                FREE.contains(&key) || is_union(schema, key) || (key == "pattern" && pattern.is_some())
            };
            match (keywords.find(|key| !is_known(key)), &pattern) {
                (Some(keyword), _) => Err(ValueError::Keyword(keyword.clone())),
                (None, None) => Ok(format!("{rule}_value: text_value\n")),
                (None, Some(pattern)) => Ok(pattern_rule(rule, pattern)),
            }
        }
    }
}

/// Returns the rule of a value that matches a regular expression. The end of the tag is not part of the value.
fn pattern_rule(rule: &str, pattern: &str) -> String {
    let terminal = rule.to_uppercase();
    format!(
        "{rule}_value[lazy]: {terminal} \"\\n</parameter>\"\n\
         {terminal}: /{pattern}/ & ~/(\\n|.)*\\n<\\/parameter>(\\n|.)*/\n"
    )
}

/// Keywords that do not restrict a text.
const FREE: &[&str] =
    &["type", "description", "title", "default", "examples", "example", "$comment", "$defs", "definitions"];

/// Returns true if a keyword combines schemas that consist of types only.
fn is_union(schema: &Value, keyword: &str) -> bool {
    let is_type = |one: &Value| {
        one.as_object().is_some_and(|fields| fields.keys().all(|key| FREE.contains(&key.as_str())))
    };
    matches!(keyword, "anyOf" | "oneOf") && schema[keyword].as_array().into_iter().flatten().all(is_type)
}

/// Returns true if a value has a type that the schema allows. A schema without types allows all.
fn has_type(schema: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    };
    let alternatives = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    match (&schema["type"], alternatives, schema["enum"].as_array()) {
        (Value::Array(names), _, _) => names.iter().any(is),
        (name @ Value::String(_), _, _) => is(name),
        (_, Some(all), _) => all.iter().any(|one| has_type(one, value)),
        (_, _, Some(values)) => values.contains(value),
        _ => true,
    }
}

impl QwenCoderCalls {
    fn new(tools: &[Value]) -> Self {
        let mut schemas = HashMap::new();
        for function in tools.iter().map(|tool| &tool["function"]) {
            let Some(name) = function["name"].as_str() else { continue };
            for (key, field) in function["parameters"]["properties"].as_object().into_iter().flatten() {
                schemas.insert((name.to_owned(), key.clone()), field.clone());
            }
        }
        let (held, raw, function) = (String::new(), String::new(), String::new());
        Self { schemas, held, raw, state: TagState::Text, function, is_first: true, calls: 0 }
    }

    fn take(&mut self, length: usize) {
        self.raw.extend(self.held.drain(..length));
    }

    /// Parses the next element. Returns false if it needs more text.
    fn step(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        if self.state == TagState::Text {
            return self.text(events);
        }
        self.take(self.held.len() - self.held.trim_start().len());
        if self.raw.len() + self.held.len() > MAX_CALL {
            return self.fail(events);
        }
        match self.state {
            TagState::Text => false,
            TagState::Function => match tag(&self.held, FUNCTION) {
                Tag::Named(name, length) => {
                    self.take(length);
                    events.push(ToolEvent::Begin { name: name.clone(), id: None });
                    (self.function, self.is_first, self.state) = (name, true, TagState::Parameter);
                    true
                }
                Tag::Wait => false,
                Tag::Other => self.fail(events),
            },
            TagState::Parameter => self.parameter(events),
            TagState::End => {
                if let Some(rest) = self.held.strip_prefix(CLOSE) {
                    self.held = rest.to_owned();
                } else if overlap(&self.held, &[CLOSE]) == self.held.len() {
                    return false;
                }
                self.raw.clear();
                self.state = TagState::Text;
                true
            }
        }
    }

    fn text(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        let found = self.held.find(OPEN);
        let end = found.unwrap_or(self.held.len() - overlap(&self.held, &[OPEN]));
        let end = self.held[..end].trim_end().len();
        push_text(self.held.drain(..end).collect(), events);
        let Some(at) = found else { return false };
        self.raw = self.held.drain(..at - end + OPEN.len()).collect();
        self.state = TagState::Function;
        true
    }

    fn parameter(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        if self.held.starts_with(END_FUNCTION) {
            self.take(END_FUNCTION.len());
            push_arguments(if self.is_first { "{}" } else { "}" }, events);
            events.push(ToolEvent::End);
            self.calls += 1;
            self.state = TagState::End;
            return true;
        }
        match tag(&self.held, PARAMETER) {
            Tag::Named(key, length) => {
                let after = &self.held[length..];
                let Some(end) = after.find(END_PARAMETER) else { return false };
                let text = after[..end].strip_prefix('\n').unwrap_or(&after[..end]);
                let value = self.value(&key, text);
                let open = if self.is_first { "{" } else { ", " };
                push_arguments(&format!("{open}{}: {value}", Value::from(key)), events);
                self.is_first = false;
                self.take(length + end + END_PARAMETER.len());
                true
            }
            Tag::Wait => false,
            Tag::Other if overlap(&self.held, &[END_FUNCTION]) == self.held.len() => false,
            Tag::Other => self.fail(events),
        }
    }

    /// Returns a parameter's value, converted to the declared type if possible.
    fn value(&self, key: &str, text: &str) -> Value {
        let schema = self.schemas.get(&(self.function.clone(), key.to_owned())).unwrap_or(&Value::Null);
        let read = || serde_json::from_str(text).ok().or_else(|| literal::parse(text));
        let value = match ValueKinds::of(schema) {
            ValueKinds::Strings => None,
            ValueKinds::Others => read(),
            ValueKinds::Mixed => read().filter(|value| !value.is_string() && has_type(schema, value)),
        };
        value.unwrap_or_else(|| text.into())
    }

    /// Reports the beginning of a parameter that was cut off.
    fn cut_parameter(&self, events: &mut Vec<ToolEvent>) {
        let Tag::Named(key, length) = tag(&self.held, PARAMETER) else { return };
        let after = &self.held[length..];
        let text = after.strip_prefix('\n').unwrap_or(after);
        let text = &text[..text.len() - overlap(text, &[END_PARAMETER])];
        let schema = self.schemas.get(&(self.function.clone(), key.clone())).unwrap_or(&Value::Null);
        let value = match ValueKinds::of(schema) {
            ValueKinds::Others => literal::beginning(text),
            ValueKinds::Strings | ValueKinds::Mixed => literal::open_string(text),
        };
        let open = if self.is_first { "{" } else { ", " };
        push_arguments(&format!("{open}{}: {value}", Value::from(key)), events);
    }

    fn fail(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        events.push(ToolEvent::Malformed(mem::take(&mut self.raw)));
        self.state = TagState::Text;
        true
    }
}

/// A tag such as `<function=NAME>` at the start of a text.
enum Tag {
    /// Name and length.
    Named(String, usize),
    Wait,
    Other,
}

fn tag(text: &str, open: &str) -> Tag {
    let Some(rest) = text.strip_prefix(open) else {
        return if open.starts_with(text) { Tag::Wait } else { Tag::Other };
    };
    match rest.find(['>', '\n']) {
        Some(end) if rest[end..].starts_with('>') && end > 0 => {
            Tag::Named(rest[..end].to_owned(), open.len() + end + 1)
        }
        Some(_) => Tag::Other,
        None => Tag::Wait,
    }
}

impl CallSyntax for QwenCoderCalls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(text);
        while self.step(events) {}
    }

    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>) {
        if self.state == TagState::Parameter && end == TextEnd::Cut {
            self.cut_parameter(events);
        }
        self.take(self.held.len());
        let rest = mem::take(&mut self.raw);
        match self.state {
            TagState::Text | TagState::End if self.calls > 0 && rest.trim().is_empty() => {}
            TagState::Text => push_text(rest, events),
            TagState::End => {}
            TagState::Function | TagState::Parameter => events.push(ToolEvent::Malformed(rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tools::examples::{Examples, WEATHER, complete, cut};

    /// Returns answers after the chat template of Qwen3 Coder, which shows calls to the model.
    pub(super) fn examples() -> Examples {
        let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nBrno\n</parameter>\n<parameter=days>\n2\n\
            </parameter>\n</function>\n</tool_call>";
        let tag = "<tool_call>\n<function=get_weather>\n<parameter=";
        let transcripts = vec![
            complete(call, WEATHER),
            complete(format!("So:\n{call}\n{call}"), format!("\"So:\" {WEATHER} {WEATHER}")),
            complete("<tool_call>\n<function=stop>\n</function>\n</tool_call>", "stop( {} )"),
            complete(
                "<tool_call>\n<function=get_weather>\n<parameter=city>\n5\n</p>\n</parameter>\n</function>",
                r#"get_weather( {"city":"5\n</p>"} )"#,
            ),
            complete(
                "<tool_call>\n<function=f>\n<other>",
                "f( malformed \"<tool_call>\\n<function=f>\\n\" \"<other>\"",
            ),
            complete("<tool_call> x", "malformed \"<tool_call> \" \"x\""),
            cut(format!("{tag}cit"), ""),
            cut(format!("{tag}city>\nBr\"no\nx\n</param"), r#"{"city": "Br\"no\nx"#),
            cut(format!("{tag}days>\n1"), r#"{"days": 1"#),
            cut(format!("{tag}city>\na\n</parameter>\n<parameter=days>\n1"), r#"{"city": "a", "days": 1"#),
        ];
        Examples { templates: &["qwen3-coder"], transcripts }
    }
}
