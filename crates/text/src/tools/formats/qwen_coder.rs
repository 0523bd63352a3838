//! Qwen3 Coder's calls: tags for the function and for each parameter, whose values are plain text.

use std::{
    collections::{HashMap, HashSet},
    mem,
};

use serde_json::{Map, Value, json};

use super::{FormatDefinition, FormatOptions};
use crate::{
    grammar::{GrammarError, json_rule, text_pattern},
    template::FunctionCall,
    tools::{
        CallKind, CallLimit, CallSyntax, MAX_CALL, MAX_NAME, ParserContext, TextEnd, ToolEvent,
        arguments::allows,
        finish_text,
        lark::{
            AllowedCalls, BareRules, Callable, FormatRules, SPACE, names, one_of, quoted, regex, repeated,
        },
        literal, overlap, push_arguments, push_text,
        schema::{ValueKinds, flattened, parameters},
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
    for (name, value) in call.arguments.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| json_text(value), str::to_owned);
        text.push_str(&format!("{PARAMETER}{name}>\n{value}{END_PARAMETER}\n"));
    }
    text + END_FUNCTION + "\n"
}

fn rules(allowed: &AllowedCalls<'_>) -> Result<FormatRules, GrammarError> {
    let functions = allowed.functions;
    let (open, close) = (allowed.markers.item(OPEN), allowed.markers.item(CLOSE));
    let mut rules = format!(
        "calls: {}\ncall: {open} body\nbody: \"\\n\" function \"\\n\" {close}\nfunction: {}\n",
        repeated("call", "\n", allowed.limit),
        one_of("function", functions.len()),
    );
    rules.push_str("text_value[lazy]: VALUE \"\\n</parameter>\"\nVALUE: /(\\n|.)*/\n");
    for (index, function) in functions.iter().enumerate() {
        let refused = |keyword: String| GrammarError::UnsupportedKeywords { keywords: keyword };
        let head = quoted(&format!("{FUNCTION}{}>\n", function.name));
        let mut items = String::new();
        for (at, parameter) in parameters(function.parameters).map_err(refused)?.into_iter().enumerate() {
            let rule = format!("parameter_{index}_{at}");
            let name = &parameter.name;
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
        let end = quoted(END_FUNCTION);
        rules.push_str(&format!("function_{index}: {head} items_{index}\nitems_{index}:{items} {end}\n"));
    }
    let begin = format!("{SPACE}{FUNCTION}{}>", names(functions));
    let bare = Some(BareRules { begin, rules: bare_rules(functions, allowed) });
    Ok(FormatRules { rules, markers: &[OPEN], bare, head: None })
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

/// Reason why a value cannot be guaranteed.
enum ValueError {
    Keyword(String),
    Grammar(GrammarError),
}

/// Returns the rule of a parameter's value and of the end of its tag. Strings are plain text, other values are JSON.
fn value_rule(rule: &str, schema: &Value) -> Result<String, ValueError> {
    let mut names = Vec::new();
    let mut rules = String::new();
    let alternatives = alternatives(schema, schema).map_err(ValueError::Keyword)?;
    let has_text = alternatives.iter().any(|form| matches!(form, ValueForm::Text(_)));
    for (at, alternative) in alternatives.iter().enumerate() {
        let name = format!("{rule}_{at}");
        match alternative {
            // Any other value is a text too.
            ValueForm::Text(TextForm { pattern: None, least: 0, most: None }) => {
                return Ok(format!("{rule}_value: text_value\n"));
            }
            ValueForm::Text(form) => rules.push_str(&text_rule(&name, form)),
            ValueForm::Listed(texts) => {
                let texts: Vec<String> =
                    texts.iter().map(|text| quoted(&format!("{text}{END_PARAMETER}"))).collect();
                rules.push_str(&format!("{name}: {}\n", texts.join(" | ")));
            }
            // The lexer cannot distinguish the beginning of other JSON from text.
            ValueForm::Json(schema) if has_text => match plain_value(schema) {
                Some(value) => rules.push_str(&format!("{name}: /{value}\\n<\\/parameter>/\n")),
                None => continue,
            },
            ValueForm::Json(schema) => {
                let json = json_rule(schema).map_err(ValueError::Grammar)?;
                let end = quoted(END_PARAMETER);
                rules.push_str(&format!("{name}: {name}_json {end}\n{name}_json: {json}\n"));
            }
        }
        names.push(name);
    }
    Ok(format!("{rule}_value: {}\n{rules}", names.join(" | ")))
}

/// Form of a parameter's value.
enum ValueForm {
    /// A string, as plain text.
    Text(TextForm),
    /// One of several texts, which are strings or JSON.
    Listed(Vec<String>),
    /// JSON of another type, under a schema.
    Json(Value),
}

/// Restrictions of a text.
struct TextForm {
    /// Regular expression of the whole text, for a Lark grammar.
    pattern: Option<String>,
    /// Minimum and maximum number of characters.
    least: u64,
    most: Option<u64>,
}

/// Keywords that do not restrict a value, or only through their types.
const FREE: &[&str] =
    &["type", "description", "title", "default", "examples", "example", "$comment", "$defs", "definitions"];

/// Maximum number of forms of a value.
const MAX_FORMS: usize = 64;

/// Returns the forms of the values that a schema allows.
///
/// # Errors
/// The name of a keyword that a plain text cannot follow.
fn alternatives(schema: &Value, root: &Value) -> Result<Vec<ValueForm>, String> {
    let mut fields = flattened(schema, root)?;
    let listed = fields.get("enum").and_then(Value::as_array).cloned();
    if let Some(values) = listed.or(fields.get("const").map(|value| vec![value.clone()])) {
        let values = values.iter().filter(|value| allows(schema, value));
        let texts: Vec<String> =
            values.map(|value| value.as_str().map_or_else(|| json_text(value), str::to_owned)).collect();
        return if texts.is_empty() { Err("enum".to_owned()) } else { Ok(vec![ValueForm::Listed(texts)]) };
    }
    for keyword in ["anyOf", "oneOf"] {
        let Some(Value::Array(all)) = fields.get(keyword).cloned() else { continue };
        fields.shift_remove(keyword);
        let mut forms = Vec::new();
        for one in all {
            let both = json!({"allOf": [one, fields]});
            forms.extend(alternatives(&both, root)?);
        }
        let is_joined = forms.len() <= MAX_FORMS && (keyword == "anyOf" || are_exclusive(&forms));
        return if is_joined { Ok(forms) } else { Err(keyword.to_owned()) };
    }
    let schema = Value::Object(fields.clone());
    if ValueKinds::of(&schema) == ValueKinds::Others {
        return Ok(vec![ValueForm::Json(schema)]);
    }

    let kinds = fields.get("type").cloned();
    let others = match &kinds {
        Some(Value::Array(names)) => names.iter().filter(|name| *name != "string").cloned().collect(),
        _ => Vec::new(),
    };
    let text = text_form(&fields, kinds.is_some())?;
    let mut forms = vec![ValueForm::Text(text)];
    if !others.is_empty() {
        for keyword in ["pattern", "minLength", "maxLength"] {
            fields.shift_remove(keyword);
        }
        fields.insert("type".to_owned(), others.into());
        forms.push(ValueForm::Json(fields.into()));
    }
    Ok(forms)
}

/// Returns a regular expression of the values of a schema that only states types without parts.
fn plain_value(schema: &Value) -> Option<String> {
    let is_plain = schema.as_object()?.keys().all(|keyword| FREE.contains(&keyword.as_str()));
    let names = match &schema["type"] {
        Value::Array(names) => names.as_slice(),
        name => std::slice::from_ref(name),
    };
    let expressions = names.iter().map(|name| type_expression(name.as_str()?));
    let expressions: Vec<&str> = expressions.collect::<Option<_>>()?;
    is_plain.then(|| format!("({})", expressions.join("|")))
}

/// Returns a regular expression of the values of a type, if they have no parts.
fn type_expression(name: &str) -> Option<&'static str> {
    match name {
        "null" => Some("null"),
        "boolean" => Some("true|false"),
        "integer" => Some("-?(0|[1-9][0-9]{0,17})"),
        "number" => Some("-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?"),
        _ => None,
    }
}

/// Returns true if no value has two of these forms.
fn are_exclusive(forms: &[ValueForm]) -> bool {
    let mut known = HashSet::new();
    let has_text = forms.iter().any(|form| matches!(form, ValueForm::Text(_)));
    forms.iter().all(|form| match form {
        ValueForm::Text(_) => known.insert("string".to_owned()),
        ValueForm::Listed(texts) => !has_text && texts.iter().all(|text| known.insert(format!("={text}"))),
        ValueForm::Json(schema) => match schema["type"].as_str() {
            Some("integer") => known.insert("number".to_owned()),
            Some(name) => known.insert(name.to_owned()),
            None => false,
        },
    })
}

/// Returns the restrictions of the strings that a schema allows. Without a type, keywords of strings would also apply to
/// texts that are read as another type.
fn text_form(fields: &Map<String, Value>, has_type: bool) -> Result<TextForm, String> {
    let mut form = TextForm { pattern: None, least: 0, most: None };
    for (keyword, rule) in fields {
        match (keyword.as_str(), rule.as_u64()) {
            ("minLength", Some(least)) if has_type => form.least = least,
            ("maxLength", Some(most)) if has_type => form.most = Some(most),
            ("pattern", _) if has_type => {
                let pattern = rule.as_str().and_then(text_pattern);
                form.pattern = Some(pattern.ok_or_else(|| keyword.clone())?);
            }
            (keyword, _) if FREE.contains(&keyword) || is_of_others(keyword) && has_type => {}
            _ => return Err(keyword.clone()),
        }
    }
    Ok(form)
}

/// Returns true if a keyword does not apply to strings.
fn is_of_others(keyword: &str) -> bool {
    [
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "properties",
        "required",
        "additionalProperties",
    ]
    .contains(&keyword)
}

/// Returns the rule of a text with the end of its tag, which is not part of the text.
fn text_rule(rule: &str, form: &TextForm) -> String {
    let terminal = rule.to_uppercase();
    let most = form.most.map_or_else(String::new, |most| most.to_string());
    let mut restrictions = format!("/(\\n|.){{{},{most}}}/", form.least);
    if let Some(pattern) = &form.pattern {
        restrictions.push_str(&format!(" & /{pattern}/"));
    }
    format!(
        "{rule}[lazy]: {terminal} \"\\n</parameter>\"\n\
         {terminal}: {restrictions} & ~/(\\n|.)*\\n<\\/parameter>(\\n|.)*/\n"
    )
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
            ValueKinds::Mixed => read().filter(|value| !value.is_string() && allows(schema, value)),
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
    };

    pub(super) fn examples() -> Examples {
        let mut transcripts = marked_calls();
        transcripts.extend(loose_calls());
        let templates = vec![TemplateExample::new("qwen3-coder")];
        Examples { has_text: true, needs_types: true, ..Examples::new(templates, transcripts) }
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
