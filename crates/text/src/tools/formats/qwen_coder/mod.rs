//! Qwen3 Coder's calls: tags for the function and for each parameter, whose values are plain text.

mod values;

use std::{collections::HashMap, mem};

use serde_json::Value;

use self::values::{ValueError, value_rule};
use super::{FormatDefinition, FormatOptions};
use crate::{
    exact_json::{ExactContent, ExactJson},
    grammar::GrammarError,
    template::FunctionCall,
    tools::{
        CallKind, CallLimit, CallSyntax, MAX_CALL, MAX_NAME, ParserContext, TextEnd, ToolEvent,
        arguments::allows,
        finish_text,
        lark::{
            AllowedCalls, BareRules, Callable, FormatRules, SPACE, names, one_of, quoted, regex, repeated,
        },
        literal, overlap, push_arguments, push_text,
        schema::{ValueKinds, parameters},
        tool_names,
        write::{part_text, write_marked},
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
    parser: |context| Some(Box::new(QwenCoderCalls::new(context))),
    rules,
    write: |calls, message| write_marked(calls, message, [OPEN, CLOSE], function_text),
    options: FormatOptions::BASE,
    #[cfg(test)]
    examples: tests::examples,
};

/// Parser of calls in tags.
#[derive(Debug)]
struct QwenCoderCalls {
    /// Schemas of parameters, by function and parameter.
    schemas: HashMap<(String, String), Value>,
    calls: CallKind,
    /// Texts that open a call: the marker, unless it is a token; of calls without it, the tags of the functions.
    opens: Vec<String>,
    held: String,
    raw: String,
    state: TagState,
    function: String,
    /// Set once the call was reported.
    has_begun: bool,
    is_first: bool,
    /// Number of complete calls.
    complete: usize,
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
    let tree = call.arguments.tree();
    let fields = match tree.root().content() {
        ExactContent::Object(fields) => fields,
        _ => Vec::new(),
    };
    for (name, value) in fields {
        let value = match value.content() {
            ExactContent::Text(value) => value.to_owned(),
            _ => part_text(value),
        };
        text.push_str(&format!("{PARAMETER}{name}>\n{value}{END_PARAMETER}\n"));
    }
    text + END_FUNCTION + "\n"
}

fn unsupported(keywords: String) -> GrammarError {
    GrammarError::UnsupportedKeywords { keywords }
}

fn rules(allowed: &AllowedCalls<'_>) -> Result<FormatRules, GrammarError> {
    let functions = allowed.functions;
    let open = allowed.markers.item(OPEN);
    let close = allowed.markers.item(CLOSE);
    let mut rules = format!(
        "calls: {}\ncall: {open} body\nbody: \"\\n\" function \"\\n\" {close}\nfunction: {}\n",
        repeated("call", "\n", allowed.limit),
        one_of("function", functions.len()),
    );
    rules.push_str("text_value[lazy]: VALUE \"\\n</parameter>\"\nVALUE: /(\\n|.)*/\n");
    for (index, function) in functions.iter().enumerate() {
        let head = quoted(&format!("{FUNCTION}{}>\n", function.name));
        let mut items = String::new();
        for (at, parameter) in parameters(function.parameters).map_err(unsupported)?.into_iter().enumerate() {
            let rule = format!("parameter_{index}_{at}");
            let name = &parameter.name;
            if name.is_empty() || name.contains(['>', '\n']) {
                return Err(unsupported(format!("properties.{name}")));
            }
            items.push_str(&format!(" {rule}{}", if parameter.is_required { "" } else { "?" }));
            let value = value_rule(&rule, &parameter.schema).map_err(|error| match error {
                ValueError::Keyword(keyword) => unsupported(format!("properties.{name}.{keyword}")),
                ValueError::Grammar(error) => error,
            })?;
            let start = quoted(&format!("{PARAMETER}{name}>\n"));
            rules.push_str(&format!("{rule}: {start} {rule}_value \"\\n\"\n{value}"));
        }
        let end = quoted(END_FUNCTION);
        rules.push_str(&format!("function_{index}: {head} items_{index}\nitems_{index}:{items} {end}\n"));
    }

    let begin = format!("{SPACE}{FUNCTION}{}>", names(functions));
    let bare = Some(BareRules { begin, rules: bare_rules(functions, allowed) });
    Ok(FormatRules { rules, markers: &[OPEN], bare, head: None, text: None })
}

/// Returns the rules of an answer that consists of calls without the opening marker. The closing one may follow each.
fn bare_rules(functions: &[Callable<'_>], allowed: &AllowedCalls<'_>) -> String {
    let more = match allowed.limit {
        CallLimit::One => "",
        CallLimit::Any => "(\"\\n\" bare_close? function)*",
    };
    let close = allowed.markers.item(CLOSE);
    let mut rules = format!(
        "bare: {} {more} (\"\\n\" bare_close?)?\nbare_close: {close} \"\\n\"?\n",
        one_of("bare", functions.len())
    );
    for (index, function) in functions.iter().enumerate() {
        let head = format!("{SPACE}{FUNCTION}{}>\\n", regex(function.name));
        rules.push_str(&format!("bare_{index}: /{head}/ items_{index}\n"));
    }
    rules
}

/// Returns the schemas of a function's parameters. Those of a schema that restricts the parameters together are its
/// properties.
fn declared(schema: &Value) -> Vec<(String, Value)> {
    match parameters(schema) {
        Ok(parameters) => parameters.into_iter().map(|one| (one.name, one.schema)).collect(),
        Err(_) => {
            let properties = schema["properties"].as_object().into_iter().flatten();
            properties.map(|(name, property)| (name.clone(), property.clone())).collect()
        }
    }
}

impl QwenCoderCalls {
    fn new(context: &ParserContext<'_>) -> Self {
        let mut schemas = HashMap::new();
        for function in context.tools.iter().map(|tool| &tool["function"]) {
            let Some(name) = function["name"].as_str() else { continue };
            for (key, schema) in declared(&function["parameters"]) {
                schemas.insert((name.to_owned(), key), schema);
            }
        }
        let opens = match context.calls {
            CallKind::Bare => {
                tool_names(context.tools).iter().map(|name| format!("{FUNCTION}{name}>")).collect()
            }
            CallKind::OfGrammar | CallKind::Marked if context.has_tokens => Vec::new(),
            CallKind::OfGrammar | CallKind::Marked => vec![OPEN.to_owned()],
        };

        Self {
            schemas,
            calls: context.calls,
            opens,
            held: String::new(),
            raw: String::new(),
            state: TagState::Text,
            function: String::new(),
            has_begun: false,
            is_first: true,
            complete: 0,
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
                let is_open = self.held.len() == overlap(&self.held, &[CLOSE, FUNCTION]);
                self.state = TagState::Text;
                if let Some(rest) = self.held.strip_prefix(CLOSE) {
                    self.held = rest.to_owned();
                } else if self.held.starts_with(FUNCTION) {
                    self.state = TagState::Function;
                } else if is_open {
                    self.state = TagState::End;
                    return false;
                }
                self.raw.clear();
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
        match self.calls {
            CallKind::OfGrammar => END_PARAMETER,
            CallKind::Marked | CallKind::Bare => LENIENT_END,
        }
    }

    fn parameter(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        if self.held.starts_with(END_FUNCTION) {
            self.take(END_FUNCTION.len());
            self.begin(events);
            push_arguments(if self.is_first { "{}" } else { "}" }, events);
            events.push(ToolEvent::End);
            self.complete += 1;
            self.state = TagState::End;
            return true;
        }

        match tag(&self.held, PARAMETER) {
            Tag::Named(key, length) => {
                self.begin(events);
                let after = &self.held[length..];
                let close = self.end_parameter();
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
    fn value(&self, key: &str, text: &str) -> ExactJson {
        let schema = self.schemas.get(&(self.function.clone(), key.to_owned())).unwrap_or(&Value::Null);
        let value = match ValueKinds::of(schema) {
            ValueKinds::Strings => None,
            ValueKinds::Others => literal::value(text),
            ValueKinds::Mixed => {
                literal::value(text).filter(|value| !value.is_string() && allows(schema, value))
            }
        };
        value.unwrap_or_else(|| Value::from(text).into())
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
        Some(end) if rest[end..].starts_with('>') && (1..=MAX_NAME).contains(&end) => {
            Tag::Named(rest[..end].to_owned(), open.len() + end + 1)
        }
        None if rest.len() <= MAX_NAME => Tag::Wait,
        Some(_) | None => Tag::Other,
    }
}

impl CallSyntax for QwenCoderCalls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(text);
        while self.step(events) {}
    }

    fn push_marker(&mut self, marker: &str, events: &mut Vec<ToolEvent>) {
        let in_value = self.state == TagState::Parameter && !self.held.trim().is_empty();
        match self.state {
            _ if in_value => return self.push(marker, events),
            TagState::Text => {}
            TagState::End => {
                self.raw.clear();
                self.state = TagState::Text;
            }
            TagState::Function | TagState::Parameter => _ = self.fail(events),
        }
        if marker == OPEN {
            self.text(events);
            self.raw = mem::take(&mut self.held);
            self.has_begun = false;
            self.state = TagState::Function;
        }
    }

    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>) {
        if self.state == TagState::Parameter && end == TextEnd::Cut {
            self.cut_parameter(events);
        }
        match self.state {
            TagState::Text | TagState::End if self.complete > 0 && self.held.trim().is_empty() => {}
            TagState::Text => {
                let opens: Vec<&str> = self.opens.iter().map(String::as_str).collect();
                finish_text(mem::take(&mut self.held), &opens, end, events);
            }
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
    use narthex_spec::ToolFormat;

    use super::*;
    use crate::tools::{
        CallReading, ToolParser,
        examples::{Examples, TemplateExample, Transcript, WEATHER, complete, cut, tools},
        guarantees::write_calls,
    };

    pub(super) fn examples() -> Examples {
        let mut transcripts = marked_calls();
        transcripts.extend(loose_calls());
        // The prompt of Qwen3.5 opens its reasoning.
        let reasoning =
            TemplateExample { answer: Some(call_after_reasoning), ..TemplateExample::new("qwen3.5") };
        let templates = vec![TemplateExample::new("qwen3-coder"), reasoning];
        Examples { has_text: true, needs_types: true, ..Examples::new(templates, transcripts) }
    }

    fn call_after_reasoning(function: &FunctionCall) -> String {
        let call = write_calls(ToolFormat::QwenCoder, std::slice::from_ref(function));
        format!("\n</think>\n\n{call}")
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
            complete(
                format!("{call}\n</tool_call>\nDone."),
                format!("{:?}", format!("{call}\n</tool_call>\nDone.")),
            ),
            complete(format!("{call}\n{call}"), &two),
            complete(format!("{call}\n</tool_call>\n{brief}\n</tool_call>"), &two),
            complete(format!("<tool_call>\n{call}\n{call}\n</tool_call>"), &two),
            complete(format!("<tool_call>{brief}</tool_call>"), WEATHER),
            complete(
                "<tool_call><function=get_weather><parameter=city>\n\na\nb\n\n</parameter></function>",
                r#"get_weather( {"city":"\na\nb\n"} )"#,
            ),
            complete("<function=stop>\n</function>", "stop( {} )"),
        ];
        let texts = [
            "The tag is `<function=stop>`.",
            "<function=stop>\n<parameter=a>\n1",
            "<function=get_weather>\n<parameter=days>\nmany\n</parameter>\n</function>",
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
            let mut parser = ToolParser::new(ToolFormat::QwenCoder, &tools(), CallReading::Exact, &[]);
            [parser.push(text), parser.finish(TextEnd::Complete)].concat()
        };
        let call = "<function=stop>\n<parameter=a>\nx</parameter>\n<\n</parameter>\n</function>";
        assert_eq!(parsed(call), [ToolEvent::Text(call.to_owned())]);
        let events = parsed(&format!("<tool_call>\n{call}\n</tool_call>"));
        assert_eq!(events[1], ToolEvent::Arguments(r#"{"a": "x</parameter>\n<"}"#.to_owned()));
    }
}
