//! Calls of Gemma 4 between two markers, anywhere in a text: a name, and arguments in a notation of their own.

mod notation;
mod rules;

use std::mem;

use self::{
    notation::{Reading, beginning, ends_in_string, key, value, write_fields},
    rules::ValueRules,
};
use super::{FormatDefinition, FormatOptions};
use crate::{
    exact_json::ExactContent,
    grammar::GrammarError,
    tools::{
        CallKind, CallSyntax, MAX_CALL, MAX_NAME, ParserContext, TextEnd, ToolEvent, finish_text,
        is_callable,
        lark::{AllowedCalls, FormatRules, one_of, quoted, repeated},
        literal::open_string,
        name_head::is_name_char,
        overlap, push_arguments, push_text, tool_names,
    },
};

const OPEN: &str = "<|tool_call>";
const CLOSE: &str = "<tool_call|>";
/// Marker around strings.
const QUOTE: &str = "<|\"|>";
/// Text before the name of the function.
const CALL: &str = "call:";

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains("<|tool_call>call:"),
    markers: &[OPEN, QUOTE, CLOSE],
    parser: |context| match context.calls {
        CallKind::OfGrammar | CallKind::Marked => Some(Box::new(Gemma4Calls::new(context))),
        CallKind::Bare => None,
    },
    rules,
    write: |calls, message| {
        for call in calls {
            let content = &mut message.content;
            content.push_marker(OPEN);
            content.push_str(&format!("{CALL}{}{{", call.name));
            if let ExactContent::Object(fields) = call.arguments.tree().root().content() {
                write_fields(fields, content);
            }
            content.push_str("}");
            content.push_marker(CLOSE);
        }
    },
    options: FormatOptions { results: ["<|tool_response>", "<tool_response|>"], ..FormatOptions::BASE },
    #[cfg(test)]
    examples: tests::examples,
};

/// Parser of text and calls.
#[derive(Debug)]
struct Gemma4Calls {
    /// Functions that a call must name; empty if only the token of the marker begins a call.
    names: Vec<String>,
    /// Markers that begin calls as text.
    text_markers: &'static [&'static str],
    held: String,
    /// Text of the call before the held text.
    raw: String,
    state: GemmaState,
    has_calls: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GemmaState {
    Text,
    /// Before the name of the function.
    Head,
    /// Before an argument or the end.
    Arguments {
        is_first: bool,
    },
    /// Before the closing marker.
    Close,
}

fn rules(allowed: &AllowedCalls<'_>) -> Result<FormatRules, GrammarError> {
    let functions = allowed.functions;
    let open = allowed.markers.item(OPEN);
    let close = allowed.markers.item(CLOSE);
    let mut values = ValueRules::new(&allowed.markers);
    for (index, function) in functions.iter().enumerate() {
        let head = quoted(&format!("{CALL}{}{{", function.name));
        let rule = format!("fields_{index}");
        values.rules.push_str(&format!("function_{index}: {head} {rule} \"}}\"\n"));
        values.fields(&rule, function.parameters, 0)?;
    }
    let rules = format!(
        "calls: {}\ncall: {open} body\nbody: function {close}\nfunction: {}\n{}",
        repeated("call", "", allowed.limit),
        one_of("function", functions.len()),
        values.rules,
    );
    Ok(FormatRules { rules, markers: &[OPEN], bare: None, head: None, text: None })
}

impl Gemma4Calls {
    fn new(context: &ParserContext<'_>) -> Self {
        Self {
            names: if context.has_tokens { Vec::new() } else { tool_names(context.tools) },
            text_markers: if context.has_tokens { &[] } else { &[OPEN] },
            held: String::new(),
            raw: String::new(),
            state: GemmaState::Text,
            has_calls: false,
        }
    }

    fn take(&mut self, length: usize) {
        self.raw.extend(self.held.drain(..length));
    }

    /// Parses the next element. Returns false if it needs more text.
    fn step(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        if self.state == GemmaState::Text {
            return self.text(events);
        }
        if self.raw.len() + self.held.len() > MAX_CALL {
            return self.fail(events);
        }
        if self.state != GemmaState::Close {
            self.take(self.held.len() - self.held.trim_start().len());
        }
        match self.state {
            GemmaState::Text => false,
            GemmaState::Head => self.head(events),
            GemmaState::Arguments { is_first } => self.argument(is_first, events),
            GemmaState::Close => {
                let rest = self.held.trim_start();
                if let Some(after) = rest.strip_prefix(CLOSE) {
                    self.held = after.to_owned();
                } else if CLOSE.starts_with(rest) {
                    return false;
                }
                self.raw.clear();
                self.state = GemmaState::Text;
                true
            }
        }
    }

    /// Reports text up to a call. White space is withheld, since a call may follow.
    fn text(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        let marker = self.text_markers.iter().find_map(|marker| self.held.find(marker));
        let end = marker.unwrap_or(self.held.len() - overlap(&self.held, self.text_markers));
        let end = self.held[..end].trim_end().len();
        push_text(self.held.drain(..end).collect(), events);
        let Some(marker) = marker else { return false };
        self.open(marker - end + OPEN.len());
        true
    }

    /// Opens a call after its marker, which ends after this many bytes of the held text.
    fn open(&mut self, length: usize) {
        self.raw.clear();
        self.take(length);
        self.state = GemmaState::Head;
    }

    fn head(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        let Some(rest) = self.held.strip_prefix(CALL) else {
            return if CALL.starts_with(&self.held) { false } else { self.fail(events) };
        };
        match rest.find(|c| !is_name_char(c)) {
            Some(end) if rest[end..].starts_with('{') && is_callable(&rest[..end], &self.names) => {
                events.push(ToolEvent::Begin { name: rest[..end].to_owned(), id: None });
                self.take(CALL.len() + end + 1);
                self.state = GemmaState::Arguments { is_first: true };
                true
            }
            None if rest.len() <= MAX_NAME => false,
            Some(_) | None => self.fail(events),
        }
    }

    fn argument(&mut self, is_first: bool, events: &mut Vec<ToolEvent>) -> bool {
        if self.held.starts_with('}') {
            self.take(1);
            push_arguments(if is_first { "{}" } else { "}" }, events);
            events.push(ToolEvent::End);
            self.has_calls = true;
            self.state = GemmaState::Close;
            return true;
        }
        if self.held.is_empty() {
            return false;
        }

        let start = usize::from(!is_first && self.held.starts_with(','));
        if !is_first && start == 0 {
            return self.fail(events);
        }
        let space = self.held[start..].len() - self.held[start..].trim_start().len();
        let (name, named) = match key(&self.held[start + space..]) {
            Reading::Part(name, length) => (name, start + space + length),
            Reading::Wait => return false,
            Reading::Bad => return self.fail(events),
        };
        match value(&self.held[named..]) {
            Reading::Part(json, length) => {
                let open = if is_first { "{" } else { ", " };
                push_arguments(&format!("{open}{name}: {json}"), events);
                self.take(named + length);
                self.state = GemmaState::Arguments { is_first: false };
                true
            }
            Reading::Wait => false,
            Reading::Bad => self.fail(events),
        }
    }

    /// Reports the beginning of an argument that was cut off.
    fn cut_argument(&self, is_first: bool, events: &mut Vec<ToolEvent>) {
        let text = self.held.strip_prefix(',').unwrap_or(&self.held).trim_start();
        let open = if is_first { "{" } else { ", " };
        match key(text) {
            Reading::Part(name, length) => {
                push_arguments(&format!("{open}{name}: {}", beginning(&text[length..])), events);
            }
            Reading::Wait if !text.is_empty() && !QUOTE.starts_with(text) => {
                push_arguments(&format!("{open}{}", open_string(text)), events);
            }
            Reading::Wait | Reading::Bad => {}
        }
    }

    fn fail(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        events.push(ToolEvent::Malformed(mem::take(&mut self.raw)));
        self.state = GemmaState::Text;
        true
    }
}

impl CallSyntax for Gemma4Calls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(text);
        while self.step(events) {}
    }

    fn push_marker(&mut self, marker: &str, events: &mut Vec<ToolEvent>) {
        let is_text = match self.state {
            GemmaState::Text | GemmaState::Head => false,
            GemmaState::Arguments { .. } => marker == QUOTE || ends_in_string(&self.held),
            GemmaState::Close => marker == CLOSE,
        };
        if is_text {
            self.push(marker, events);
            return;
        }
        if matches!(self.state, GemmaState::Head | GemmaState::Arguments { .. }) {
            self.take(self.held.len());
            self.fail(events);
        }
        self.state = GemmaState::Text;
        if marker == OPEN {
            self.text(events);
            self.open(self.held.len());
        }
    }

    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>) {
        match self.state {
            GemmaState::Head | GemmaState::Arguments { .. } => {
                if let GemmaState::Arguments { is_first } = self.state
                    && end == TextEnd::Cut
                {
                    self.cut_argument(is_first, events);
                }
                self.take(self.held.len());
                self.fail(events);
            }
            // The answer was cut off in the closing marker.
            GemmaState::Close if end == TextEnd::Cut => {}
            GemmaState::Text | GemmaState::Close if self.has_calls && self.held.trim().is_empty() => {}
            GemmaState::Text | GemmaState::Close => {
                finish_text(mem::take(&mut self.held), self.text_markers, end, events);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::ToolFormat;

    use super::{CLOSE, OPEN, QUOTE};
    use crate::tools::{
        CallReading, TextEnd, ToolEvent, ToolParser,
        examples::{Examples, TemplateExample, WEATHER, complete, cut, tools},
    };

    /// Returns answers after the chat template of Gemma 4.
    pub(super) fn examples() -> Examples {
        let call = format!("{OPEN}call:get_weather{{city:{QUOTE}Brno{QUOTE},days:2}}{CLOSE}");
        let both = format!("{WEATHER} stop( {{}} )");
        let stop = format!("{OPEN}call:stop{{}}{CLOSE}");
        let open = format!("{OPEN}call:get_weather{{city:{QUOTE}Brno{QUOTE}");
        let quoted = format!("{OPEN}call:get_weather{{city:{QUOTE}a\"}}{CLOSE}{OPEN}{QUOTE}}}{CLOSE}");
        let nested = format!("{{{QUOTE}a b{QUOTE}:[1,{{c:{QUOTE}d{QUOTE}}},None, true],e:{{}}}}");
        let transcripts = vec![
            complete(&call, WEATHER),
            complete(format!("{call}{stop}"), &both),
            complete(format!("I look.\n{call}\n{stop}\nWait."), format!("\"I look.\" {both} \"\\nWait.\"")),
            complete(quoted, format!("get_weather( {{\"city\":\"a\\\"}}{CLOSE}{OPEN}\"}} )")),
            complete(
                format!("{OPEN}call:get_weather{{city:{nested}, days: -1.5e2 }}{CLOSE}"),
                r#"get_weather( {"city":{"a b":[1,{"c":"d"},null,true],"e":{}},"days":-150.0} )"#,
            ),
            // Without markers around a string, and without the closing marker.
            complete(format!("{OPEN}call:get_weather{{city:Brno,days:2}}"), WEATHER),
            complete(format!("{OPEN}call:stop{{}} x"), "stop( {} ) \" x\""),
            complete("a < b, <|tool_call|> and <|tool_cal", "\"a < b, <|tool_call|> and <|tool_cal\""),
            // Malformed calls.
            complete(format!("{OPEN}stop{{}}"), format!("malformed {OPEN:?} \"stop{{}}\"")),
            complete(format!("{OPEN}call:other{{}}"), format!("malformed {OPEN:?} \"call:other{{}}\"")),
            complete(&open, format!("get_weather( broken {:?} malformed {open:?}", r#"{"city": "Brno""#)),
            cut(format!("{OPEN}call:get_wea"), ""),
            cut(format!("{OPEN}call:get_weather{{ci"), r#"{"ci"#),
            cut(format!("{OPEN}call:get_weather{{city:{QUOTE}Br<|"), r#"{"city": "Br"#),
            cut(format!("{open},days:[1, 2"), r#"{"city": "Brno", "days": [1, 2"#),
            cut(format!("{open}}}<tool"), r#"{"city": "Brno"}"#),
        ];
        let templates = vec![TemplateExample {
            difference: Some("no empty channel of thought before a call"),
            end: "<|tool_response>",
            ..TemplateExample::new("gemma4")
        }];
        Examples { has_text: true, ..Examples::new(templates, transcripts) }
    }

    #[test]
    fn tokens_of_markers_begin_and_end_calls() {
        let markers = [OPEN, QUOTE, CLOSE];
        let check = |answer: &[&str], expect: &str| {
            let mut parser = ToolParser::new(ToolFormat::Gemma4, &tools(), CallReading::Lenient, &markers);
            let mut events = Vec::new();
            for part in answer {
                events.extend(match markers.contains(part) {
                    true => parser.push_marker(part),
                    false => parser.push(part),
                });
            }
            events.extend(parser.finish(TextEnd::Complete));
            let shown = events.iter().map(|event| match event {
                ToolEvent::Text(text) | ToolEvent::Arguments(text) => text.clone(),
                ToolEvent::Begin { name, .. } => format!("{name}<"),
                ToolEvent::End => ">".to_owned(),
                ToolEvent::Malformed(text) => format!("!{text}!"),
            });
            assert_eq!(shown.collect::<String>(), expect, "{answer:?}");
        };
        check(&["Hm. ", OPEN, "call:stop{}", CLOSE, " x"], "Hm.stop<{}> x");
        check(
            &[OPEN, "call:other{a:", QUOTE, "b", CLOSE, "c", QUOTE, "}", CLOSE],
            &format!("other<{{\"a\": \"b{CLOSE}c\"}}>"),
        );
        check(&["a <|tool_call>", "call:stop{}"], "a <|tool_call>call:stop{}");
        check(&[OPEN, "call:stop{", OPEN, "call:stop{}", CLOSE], "stop<!call:stop{!stop<{}>");
        check(&[OPEN, CLOSE, "a ", CLOSE, "b", QUOTE], "!!a b");
    }
}
