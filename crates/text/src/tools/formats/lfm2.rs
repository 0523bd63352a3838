//! Calls of LFM2 and LFM2.5: a list of Python calls between two markers, anywhere in a text. LFM2.5 also writes the list
//! without markers, as the whole answer.

use std::mem;

use super::{FormatDefinition, FormatOptions};
use crate::{
    grammar::GrammarError,
    tools::{
        CallKind, CallSyntax, ParserContext, TextEnd, ToolEvent,
        call_list::{CallList, ListStep, list_rules, list_text},
        finish_text,
        lark::{AllowedCalls, BareRules, FormatRules, SPACE, names},
        overlap, push_text, tool_names,
    },
};

const OPEN: &str = "<|tool_call_start|>";
const CLOSE: &str = "<|tool_call_end|>";

/// Signs of the format in chat templates: the frame of the tools of LFM2, calls that a template writes, and the frame of
/// the tools of LFM2.5.
const SIGNS: [&str; 3] = ["<|tool_list_start|>", OPEN, "List of tools: ["];

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| SIGNS.iter().any(|sign| template.contains(sign)),
    markers: &[OPEN, CLOSE],
    parser: |context| Some(Box::new(Lfm2Calls::new(context))),
    rules,
    write: |calls, message| {
        message.content.push_marker(OPEN);
        message.content.push_str(&list_text(calls));
        message.content.push_marker(CLOSE);
    },
    options: FormatOptions {
        results: ["<|tool_response_start|>", "<|tool_response_end|>"],
        ..FormatOptions::BASE
    },
    #[cfg(test)]
    examples: tests::examples,
};

/// Parser of text and lists of calls.
#[derive(Debug)]
struct Lfm2Calls {
    names: Vec<String>,
    /// Set if only the tokens of markers begin marked calls.
    has_tokens: bool,
    /// Markers that begin calls as text.
    text_markers: &'static [&'static str],
    /// Set while a list without a marker may begin.
    may_be_bare: bool,
    held: String,
    state: Lfm2State,
    has_calls: bool,
}

#[derive(Debug)]
enum Lfm2State {
    Text,
    Calls(CallList),
    /// Before the closing marker.
    Close,
}

fn rules(allowed: &AllowedCalls<'_>) -> Result<FormatRules, GrammarError> {
    let open = allowed.markers.item(OPEN);
    let close = allowed.markers.item(CLOSE);
    let list = list_rules(allowed.functions, allowed.limit)?;
    let begin = format!("{SPACE}\\[{SPACE}{}\\(", names(allowed.functions));
    let bare = Some(BareRules { begin, rules: "bare: list\n".to_owned() });
    let rules = format!("calls: {open} body\nbody: list {close}\n{list}");
    Ok(FormatRules { rules, markers: &[OPEN], bare, head: None, text: None })
}

impl Lfm2Calls {
    fn new(context: &ParserContext<'_>) -> Self {
        let is_text = !context.has_tokens && context.calls != CallKind::Bare;
        Self {
            names: tool_names(context.tools),
            has_tokens: context.has_tokens,
            text_markers: if is_text { &[OPEN] } else { &[] },
            may_be_bare: context.calls != CallKind::Marked,
            held: String::new(),
            state: Lfm2State::Text,
            has_calls: false,
        }
    }

    /// Parses the next element. Returns false if it needs more text.
    fn step(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        match &mut self.state {
            Lfm2State::Text => self.text(events),
            Lfm2State::Calls(list) => {
                let step = list.step(&mut self.held, events);
                self.has_calls |= list.has_calls();
                match step {
                    ListStep::Again => {}
                    ListStep::Wait => return false,
                    ListStep::End => self.state = Lfm2State::Close,
                    ListStep::Failed => self.state = Lfm2State::Text,
                }
                true
            }
            Lfm2State::Close => self.close(),
        }
    }

    /// Reports text up to a call. White space is withheld, since a call may follow.
    fn text(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        let space = self.held.len() - self.held.trim_start().len();
        if self.may_be_bare && self.held[space..].starts_with('[') {
            self.may_be_bare = false;
            let before = self.held.drain(..space).collect();
            self.state = Lfm2State::Calls(CallList::new(self.names.clone(), before));
            return true;
        }

        let marker = self.text_markers.iter().find_map(|marker| self.held.find(marker));
        let end = marker.unwrap_or(self.held.len() - overlap(&self.held, self.text_markers));
        let end = self.held[..end].trim_end().len();
        self.may_be_bare &= end == 0;
        push_text(self.held.drain(..end).collect(), events);
        let Some(marker) = marker else { return false };
        self.open(marker - end + OPEN.len());
        true
    }

    /// Opens a list after its marker, which ends after this many bytes of the held text. A model may quote a marker that
    /// is only text, so the list must then name a tool.
    fn open(&mut self, length: usize) {
        let before = self.held.drain(..length).collect();
        let names = if self.has_tokens { Vec::new() } else { self.names.clone() };
        self.may_be_bare = false;
        self.state = Lfm2State::Calls(CallList::marked(names, before));
    }

    /// Removes the closing marker, which may be missing.
    fn close(&mut self) -> bool {
        let rest = self.held.trim_start();
        if let Some(after) = rest.strip_prefix(CLOSE) {
            self.held = after.to_owned();
        } else if CLOSE.starts_with(rest) {
            return false;
        }
        self.state = Lfm2State::Text;
        true
    }
}

impl CallSyntax for Lfm2Calls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(text);
        while self.step(events) {}
    }

    fn push_marker(&mut self, marker: &str, events: &mut Vec<ToolEvent>) {
        let is_close = marker == CLOSE;
        let is_text = match &self.state {
            Lfm2State::Text => false,
            Lfm2State::Calls(list) => list.in_string(&self.held) || is_close && list.may_end(),
            Lfm2State::Close => is_close,
        };
        if is_text {
            self.push(marker, events);
            return;
        }
        if let Lfm2State::Calls(list) = &mut self.state {
            list.finish(&mut self.held, TextEnd::Complete, events);
        }
        self.state = Lfm2State::Text;
        if marker == OPEN {
            self.text(events);
            self.open(self.held.len());
        }
    }

    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>) {
        match &mut self.state {
            Lfm2State::Calls(list) => list.finish(&mut self.held, end, events),
            // The answer was cut off in the closing marker.
            Lfm2State::Close if end == TextEnd::Cut => {}
            Lfm2State::Text | Lfm2State::Close if self.has_calls && self.held.trim().is_empty() => {}
            Lfm2State::Text | Lfm2State::Close => {
                finish_text(mem::take(&mut self.held), self.text_markers, end, events);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::ToolFormat;

    use super::{CLOSE, OPEN};
    use crate::tools::{
        CallReading, TextEnd, ToolEvent, ToolParser,
        examples::{Examples, NO_CALLS, TemplateExample, Transcript, WEATHER, complete, cut, tools},
        tool_format,
    };

    const LIST: &str = r#"[get_weather(city="Brno", days=2), stop()]"#;

    pub(super) fn examples() -> Examples {
        let transcripts = [marked_lists(), unmarked_lists(), malformed_lists(), cut_lists()];
        let templates = vec![TemplateExample { abilities: NO_CALLS, ..TemplateExample::new("lfm2") }];
        Examples {
            has_text: true,
            has_keywords: true,
            ..Examples::new(templates, transcripts.into_iter().flatten().collect())
        }
    }

    /// Returns answers after the model cards of LFM2 and LFM2.5.
    fn marked_lists() -> Vec<Transcript> {
        let both = format!("{WEATHER} stop( {{}} )");
        let call = format!("{OPEN}{LIST}{CLOSE}");
        let nested = r#"city={'a': [1, None, {"b": (True, False)}], "c": null}, days=-1.5"#;
        let nested_events =
            r#"get_weather( {"city":{"a":[1,null,{"b":[true,false]}],"c":null},"days":-1.5} )"#;
        let quoted = r#"get_weather( {"city":"a]<|tool_call_end|><|tool_call_start|>[stop()]"} )"#;
        vec![
            complete(&call, &both),
            complete(format!("{call}I look."), format!("{both} \"I look.\"")),
            complete(format!("I look.\n{call}\n\nWait."), format!("\"I look.\" {both} \"\\n\\nWait.\"")),
            complete(format!("{call}\n{call}\n"), format!("{both} {both}")),
            complete(format!("{OPEN} [ stop( ) ; stop(),\n ] \n{CLOSE}"), "stop( {} ) stop( {} )"),
            complete(format!("{OPEN}[get_weather({nested})]{CLOSE}"), nested_events),
            complete(format!("{OPEN}[get_weather(city='a]{CLOSE}{OPEN}[stop()]')]{CLOSE}"), quoted),
            // Without brackets, without calls, and without the closing marker.
            complete(format!("{OPEN}stop(){CLOSE}"), "stop( {} )"),
            complete(format!("{OPEN}[]{CLOSE}x"), r#""x""#),
            complete(format!("{OPEN}{LIST}"), &both),
            complete(format!("{OPEN}[stop(){CLOSE}x"), r#"stop( {} ) "x""#),
            complete(format!("{OPEN}[stop()] x"), r#"stop( {} ) " x""#),
            complete("a < b, <|tool_call|> and <|tool_call_", r#""a < b, <|tool_call|> and <|tool_call_""#),
        ]
    }

    /// Returns answers after reports of LFM2.5.
    fn unmarked_lists() -> Vec<Transcript> {
        let both = format!("{WEATHER} stop( {{}} )");
        vec![
            complete(LIST, &both),
            complete(format!("\n{LIST}\n"), &both),
            complete(format!("{LIST}{CLOSE}"), &both),
            complete(format!("{LIST} calls."), format!("{:?}", format!("{LIST} calls."))),
            complete(format!("I call {LIST}"), format!("{:?}", format!("I call {LIST}"))),
            complete("[1, 2]", r#""[1, 2]""#),
            complete("[]", r#""[]""#),
        ]
    }

    fn malformed_lists() -> Vec<Transcript> {
        vec![
            complete(OPEN, format!("malformed {OPEN:?}")),
            complete(
                format!("Hm. {OPEN}I call{CLOSE}"),
                format!("\"Hm.\" malformed {:?} {:?}", format!(" {OPEN}"), format!("I call{CLOSE}")),
            ),
            complete(
                format!("{OPEN}[stop(), other(a=1)]{CLOSE}"),
                format!("stop( {{}} ) malformed \" \" {:?}", format!("other(a=1)]{CLOSE}")),
            ),
            complete(
                format!("{OPEN}[get_weather('Brno')]{CLOSE}"),
                format!("get_weather( malformed \"{OPEN}[get_weather(\" \"'Brno')]{CLOSE}\""),
            ),
            complete(
                format!("{OPEN}[get_weather(city='x"),
                format!("get_weather( malformed \"{OPEN}[get_weather(city='x\""),
            ),
        ]
    }

    fn cut_lists() -> Vec<Transcript> {
        let open = format!("{OPEN}[get_weather(city='Brno'");
        vec![
            cut(format!("{OPEN}[get_wea"), ""),
            cut(format!("{OPEN}[get_weather(ci"), r#"{"ci"#),
            cut(format!("Hm. {OPEN}[get_weather(city=\"Br"), r#"{"city": "Br"#),
            cut(format!("{open}, days=[1, {{'a'"), r#"{"city": "Brno", "days": [1, {'a'"#),
            cut(format!("{open}, days=2)"), r#"{"city": "Brno", "days": 2}"#),
            cut(format!("{open})]<|tool_ca"), r#"{"city": "Brno"}"#),
            cut("[get_weather(city='Br", r#"{"city": "Br"#),
        ]
    }

    /// Returns the events of a complete answer in which the markers are tokens. A `~` before a marker makes it text.
    fn events_of_tokens(answer: &str) -> String {
        let mut parser = ToolParser::new(ToolFormat::Lfm2, &tools(), CallReading::Lenient, &[OPEN, CLOSE]);
        let mut events = Vec::new();
        let mut rest = answer;
        while let Some((at, marker)) = [OPEN, CLOSE].iter().filter_map(|m| Some((rest.find(m)?, *m))).min() {
            let before = &rest[..at];
            rest = &rest[at + marker.len()..];
            match before.strip_suffix('~') {
                Some(before) => events.extend(parser.push(&format!("{before}{marker}"))),
                None => {
                    events.extend(parser.push(before));
                    events.extend(parser.push_marker(marker));
                }
            }
        }
        events.extend(parser.push(rest));
        events.extend(parser.finish(TextEnd::Complete));
        let mut shown = String::new();
        for event in events {
            match event {
                ToolEvent::Text(text) => shown.push_str(&text),
                ToolEvent::Begin { name, .. } => shown.push_str(&format!("{name}<")),
                ToolEvent::Arguments(text) => shown.push_str(&text),
                ToolEvent::End => shown.push('>'),
                ToolEvent::Malformed(text) => shown.push_str(&format!("!{text}!")),
            }
        }
        shown
    }

    #[test]
    fn tokens_of_markers_begin_and_end_calls() {
        let check = |answer: &str, expect: &str| {
            let spelled = |text: &str| text.replace('«', OPEN).replace('»', CLOSE);
            assert_eq!(events_of_tokens(&spelled(answer)), spelled(expect), "{answer}");
        };
        check("Hm. «[stop(), stop()]» Wait.", "Hm.stop<{}>stop<{}> Wait.");
        check("«[stop()]»«[stop()]»", "stop<{}>stop<{}>");
        // Only the token begins a call, and a string may have its text.
        check("Write ~«[stop()]~» to stop.", "Write «[stop()]» to stop.");
        check("~«[stop()]~»", "«[stop()]»");
        check("~««[stop()]»", "«stop<{}>");
        check("«[get_weather(city='~» » «')]»", "get_weather<{\"city\": \"» » «\"}>");
        // The client learns of calls of other tools.
        check("«[other(a=1)]»", "other<{\"a\": 1}>");
        check("[stop()]»", "stop<{}>");
        check("[stop()]", "stop<{}>");
        check("[other()]", "[other()]");
        // Missing brackets and markers.
        check("«stop()»x", "stop<{}>x");
        check("«[stop()»x", "stop<{}>x");
        check("«[stop()]«[stop()]»", "stop<{}>stop<{}>");
        check("«[stop()«[stop()]»", "stop<{}>stop<{}>");
        check("«[]»x", "x");
        check("a »b", "a b");
        // Malformed calls end at the next marker, or become text.
        check("«»", "!!");
        check("a «Hello» b", "a! Hello! b");
        check("a «I call» b", "a! !I call b");
        check("«[stop(» b", "stop<![stop(! b");
        check("«[get_weather(city=«[stop()]»", "get_weather<![get_weather(city=!stop<{}>");
        check("«[stop(1)]» b", "stop<![stop(!1)] b");
    }

    #[test]
    fn templates_of_every_version_have_the_format() {
        for source in [
            r#"ns.system_prompt + "List of tools: <|tool_list_start|>[""#,
            r#"ns.system_prompt + "List of tools: [""#,
            r#""List of tools: " + (tools | tojson) }}{{ "<|tool_call_start|>[" + calls + "]<|tool_call_end|>""#,
        ] {
            assert_eq!(tool_format(source), Some(ToolFormat::Lfm2), "{source}");
        }
    }
}
