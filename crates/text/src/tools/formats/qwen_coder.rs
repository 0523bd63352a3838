//! Qwen3 Coder's calls: tags for the function and for each parameter, whose values are plain text.

use std::{collections::HashMap, mem};

use serde_json::Value;

use super::FormatDefinition;
use crate::{
    grammar::{GrammarError, json_rule, whole_expression},
    template::FunctionCall,
    tools::{
        CallReading, CallSyntax, MAX_CALL, TextEnd, ToolEvent,
        lark::{AllowedCalls, FormatRules, one_of, quoted, repeated},
        literal, overlap, push_arguments, push_text,
        schema::{ValueKinds, parameters},
        tool_names,
        write::{json_text, write_marked},
    },
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "\n</parameter>";
/// End of a parameter in lenient reading, where it may be on the line of the value.
const LENIENT_END: &str = "</parameter>";

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains(FUNCTION) && template.contains(PARAMETER),
    markers: &[OPEN, CLOSE],
    parser: |tools, reading| Box::new(QwenCoderCalls::new(tools, reading)),
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
    reading: CallReading,
    /// Texts that open a call: the marker; in lenient reading, also the tags of the functions, since models leave out the
    /// marker.
    opens: Vec<String>,
    held: String,
    raw: String,
    state: TagState,
    function: String,
    /// Set once the call was reported.
    has_begun: bool,
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
    fn new(tools: &[Value], reading: CallReading) -> Self {
        let mut schemas = HashMap::new();
        for function in tools.iter().map(|tool| &tool["function"]) {
            let Some(name) = function["name"].as_str() else { continue };
            for (key, field) in function["parameters"]["properties"].as_object().into_iter().flatten() {
                schemas.insert((name.to_owned(), key.clone()), field.clone());
            }
        }
        let names = if reading == CallReading::Lenient { tool_names(tools) } else { Vec::new() };
        let tags = names.iter().map(|name| format!("{FUNCTION}{name}>"));
        Self {
            schemas,
            reading,
            opens: [OPEN.to_owned()].into_iter().chain(tags).collect(),
            held: String::new(),
            raw: String::new(),
            state: TagState::Text,
            function: String::new(),
            has_begun: false,
            is_first: true,
            calls: 0,
        }
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
                    self.open(name);
                    self.begin(events);
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
        let opens: Vec<&str> = self.opens.iter().map(String::as_str).collect();
        let found = opens.iter().filter_map(|open| Some((self.held.find(open)?, open.len()))).min();
        let end = found.map_or(self.held.len() - overlap(&self.held, &opens), |(at, _)| at);
        let end = self.held[..end].trim_end().len();
        push_text(self.held.drain(..end).collect(), events);
        let Some((at, length)) = found else { return false };
        self.raw = self.held.drain(..at - end + length).collect();
        match self.raw.split_once(FUNCTION) {
            Some((_, name)) => self.open(name.trim_end_matches('>').to_owned()),
            None => self.state = TagState::Function,
        }
        true
    }

    /// Opens a call of a function.
    fn open(&mut self, function: String) {
        (self.function, self.has_begun, self.is_first) = (function, false, true);
        self.state = TagState::Parameter;
    }

    /// Reports the beginning of the call. Without a marker, a tag of the call's content comes before it.
    fn begin(&mut self, events: &mut Vec<ToolEvent>) {
        if !self.has_begun {
            self.has_begun = true;
            events.push(ToolEvent::Begin { name: self.function.clone(), id: None });
        }
    }

    /// Returns the text that ends a parameter's value.
    fn end_parameter(&self) -> &'static str {
        match self.reading {
            CallReading::Exact => END_PARAMETER,
            CallReading::Lenient => LENIENT_END,
        }
    }

    fn parameter(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        if self.held.starts_with(END_FUNCTION) {
            self.take(END_FUNCTION.len());
            self.begin(events);
            push_arguments(if self.is_first { "{}" } else { "}" }, events);
            events.push(ToolEvent::End);
            self.calls += 1;
            self.state = TagState::End;
            return true;
        }
        match tag(&self.held, PARAMETER) {
            Tag::Named(key, length) => {
                self.begin(events);
                let (after, close) = (&self.held[length..], self.end_parameter());
                let Some(end) = after.find(close) else { return false };
                let text = &after[..end];
                let text = if close == LENIENT_END { text.strip_suffix('\n').unwrap_or(text) } else { text };
                let text = text.strip_prefix('\n').unwrap_or(text);
                let value = self.value(&key, text);
                let open = if self.is_first { "{" } else { ", " };
                push_arguments(&format!("{open}{}: {value}", Value::from(key)), events);
                self.is_first = false;
                self.take(length + end + close.len());
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
        let text = &text[..text.len() - overlap(text, &[END_PARAMETER, self.end_parameter()])];
        let schema = self.schemas.get(&(self.function.clone(), key.clone())).unwrap_or(&Value::Null);
        let value = match ValueKinds::of(schema) {
            ValueKinds::Others => literal::beginning(text),
            ValueKinds::Strings | ValueKinds::Mixed => literal::open_string(text),
        };
        let open = if self.is_first { "{" } else { ", " };
        push_arguments(&format!("{open}{}: {value}", Value::from(key)), events);
    }

    /// Ends a malformed call. The tag of a function without a marker is plain text if no call follows it.
    fn fail(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        let raw = mem::take(&mut self.raw);
        if self.state == TagState::Parameter && !self.has_begun {
            push_text(raw, events);
        } else {
            events.push(ToolEvent::Malformed(raw));
        }
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
        match self.state {
            TagState::Text | TagState::End if self.calls > 0 && self.held.trim().is_empty() => {}
            TagState::Text => push_text(mem::take(&mut self.held), events),
            TagState::End => {}
            TagState::Function | TagState::Parameter => {
                self.take(self.held.len());
                self.fail(events);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::examples::{Examples, Transcript, WEATHER, complete, cut, tools};

    pub(super) fn examples() -> Examples {
        let mut transcripts = marked_calls();
        transcripts.extend(loose_calls());
        Examples { templates: &["qwen3-coder"], transcripts }
    }

    /// Returns answers after the chat template of Qwen3 Coder, which shows calls to the model.
    fn marked_calls() -> Vec<Transcript> {
        let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nBrno\n</parameter>\n<parameter=days>\n2\n\
            </parameter>\n</function>\n</tool_call>";
        let tag = "<tool_call>\n<function=get_weather>\n<parameter=";
        vec![
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
        ]
    }

    /// Returns answers after reports of Qwen3 Coder, which leaves out markers and line breaks.
    fn loose_calls() -> Vec<Transcript> {
        let call = "<function=get_weather>\n<parameter=city>\nBrno\n</parameter>\n<parameter=days>\n2\n</parameter>\n\
            </function>";
        let brief =
            "<function=get_weather><parameter=city>Brno</parameter><parameter=days>2</parameter></function>";
        let two = format!("{WEATHER} {WEATHER}");
        let mut transcripts = vec![
            complete(format!("I'll look.\n\n{call}\n</tool_call>"), format!("\"I'll look.\" {WEATHER}")),
            complete(format!("{call}\n</tool_call>\nDone."), format!("{WEATHER} \"\\nDone.\"")),
            complete(format!("{call}\n{call}"), &two),
            complete(format!("{call}\n</tool_call>\n{brief}\n</tool_call>"), &two),
            complete(format!("<tool_call>\n{call}\n{call}\n</tool_call>"), &two),
            complete(format!("<tool_call>{brief}</tool_call>"), WEATHER),
            complete(
                "<tool_call><function=get_weather><parameter=city>\n\na\nb\n\n</parameter></function>",
                r#"get_weather( {"city":"\na\nb\n"} )"#,
            ),
            complete("<function=stop>\n</function>", "stop( {} )"),
            complete(
                "<function=stop>\n<parameter=a>\n1",
                "stop( malformed \"<function=stop>\\n<parameter=a>\\n1\"",
            ),
            cut("<function=get_weather>\n<parameter=city>\nBrno</param", r#"{"city": "Brno"#),
        ];
        let texts = [
            "The tag is `<function=stop>`.",
            "<function=stop>\n<tool>",
            "<function=stop",
            "<function=stop>\n<par",
            "<function=other>\n<parameter=a>\n1\n</parameter>\n</function>",
            "</tool_call>",
        ];
        transcripts.extend(texts.map(|text| complete(text, format!("{text:?}"))));
        transcripts
    }

    #[test]
    fn exact_answers_have_only_the_markers_of_the_format() {
        let parsed = |text: &str| {
            let mut parser = (FORMAT.parser)(&tools(), CallReading::Exact);
            let mut events = Vec::new();
            parser.push(text, &mut events);
            parser.finish(TextEnd::Complete, &mut events);
            events
        };
        let call = "<function=stop>\n<parameter=a>\nx</parameter>\n<\n</parameter>\n</function>";
        assert_eq!(parsed(call), [ToolEvent::Text(call.to_owned())]);
        let events = parsed(&format!("<tool_call>\n{call}\n</tool_call>"));
        assert_eq!(events[1], ToolEvent::Arguments(r#"{"a": "x</parameter>\n<"}"#.to_owned()));
    }
}
