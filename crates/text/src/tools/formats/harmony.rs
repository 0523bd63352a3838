//! gpt-oss's calls: messages of the channel `commentary` to a function, with a JSON object of arguments.

use std::mem;

use serde_json::Value;

use super::{FormatDefinition, FormatOptions};
use crate::{
    grammar::{GrammarError, json_rule},
    tools::{
        CallKind, CallSyntax, MAX_CALL, MAX_NAME, ParserContext, TextEnd, ToolEvent,
        harmony_messages::{CALL, CHANNEL, CONSTRAIN, END, MARKERS, MESSAGE, START, word_after},
        is_callable,
        lark::{AllowedCalls, FormatRules, Markers, one_of, quoted, regex},
        overlap, push_arguments, push_text, tool_names,
        write::json_text,
    },
};

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains("<|channel|>commentary") && template.contains("functions."),
    markers: &[CHANNEL, CONSTRAIN, MESSAGE, CALL],
    parser: |context| match context.calls {
        CallKind::OfGrammar | CallKind::Marked => Some(Box::new(HarmonyCalls::new(context))),
        CallKind::Bare => None,
    },
    rules,
    write: |calls, message| {
        for (index, call) in calls.iter().enumerate() {
            if index > 0 {
                message.content.push_marker(START);
                message.content.push_str("assistant");
            }
            message.content.push_marker(CHANNEL);
            message.content.push_str(&format!("commentary to=functions.{} ", call.name));
            message.content.push_marker(CONSTRAIN);
            message.content.push_str("json");
            message.content.push_marker(MESSAGE);
            message.content.push_str(&json_text(&call.arguments));
            message.content.push_marker(CALL);
        }
    },
    options: FormatOptions {
        content_head: |markers| {
            let [channel, message] = [CHANNEL, MESSAGE].map(|marker| markers.item(marker));
            format!("({} {channel} \"final\" {message})?", before_channel(markers))
        },
        ..FormatOptions::BASE
    },
    #[cfg(test)]
    examples: tests::examples,
};

/// Returns the grammar item of the text between messages, which the first message of an answer does not have.
fn before_channel(markers: &Markers<'_>) -> String {
    format!("({} \"assistant\")?", markers.item(START))
}

fn rules(allowed: &AllowedCalls<'_>) -> Result<FormatRules, GrammarError> {
    let markers = &allowed.markers;
    let [channel, constrain, message, end, call] =
        [CHANNEL, CONSTRAIN, MESSAGE, END, CALL].map(|marker| markers.item(marker));
    let before = before_channel(markers);
    let mut rules = format!("calls: {before} {channel} called {call}?\n");
    rules.push_str(&format!("called: {}\n", one_of("called", allowed.functions.len())));
    for (index, function) in allowed.functions.iter().enumerate() {
        let head = quoted(&format!("commentary to=functions.{} ", function.name));
        rules.push_str(&format!("called_{index}: {head} {constrain} \"json\" {message} arguments_{index}\n"));
        rules.push_str(&format!("arguments_{index}: {}\n", json_rule(function.parameters)?));
    }

    // Where markers are texts, a text ends before the first of them.
    let words = match markers.token(CHANNEL) {
        Some(_) => "/(\\n|.)*/".to_owned(),
        None => format!("/(\\n|.)*/ & ~/(\\n|.)*{}(\\n|.)*/", regex(CHANNEL)),
    };
    let text = format!(
        "start: WORDS | said | preamble? calls\nsaid: {before} {channel} (\"final\" | \"commentary\") {message} WORDS\n\
         preamble: {before} {channel} \"commentary\" {message} WORDS {end}\nWORDS: {words}\n"
    );
    Ok(FormatRules { rules, markers: &[], bare: None, head: None, text: Some(text) })
}

/// Parser of the texts and calls of an answer without its reasoning.
struct HarmonyCalls {
    names: Vec<String>,
    has_tokens: bool,
    /// Text that may end with the beginning of a marker, if markers are texts.
    held: String,
    state: HarmonyState,
}

enum HarmonyState {
    Text,
    /// In a header without its first marker.
    Head {
        text: String,
        begin: HeadBegin,
    },
    Arguments(CallArguments),
    /// After a call, with the text since then.
    After(String),
}

/// Beginning of a header.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadBegin {
    Marker,
    /// A text like the marker, which is a header only if the token of a marker follows it: the parser of messages passes
    /// headers on as a whole.
    Text,
}

/// Arguments of a call.
struct CallArguments {
    /// The header with its markers.
    head: String,
    json: String,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl HarmonyCalls {
    fn new(context: &ParserContext<'_>) -> Self {
        let names = tool_names(context.tools);
        Self { names, has_tokens: context.has_tokens, held: String::new(), state: HarmonyState::Text }
    }

    fn add_text(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        if text.is_empty() {
            return;
        }
        match mem::replace(&mut self.state, HarmonyState::Text) {
            HarmonyState::Text => match text.strip_prefix(CHANNEL).filter(|_| self.has_tokens) {
                Some(head) => {
                    self.state = HarmonyState::Head { text: head.to_owned(), begin: HeadBegin::Text };
                }
                None => push_text(text.to_owned(), events),
            },
            HarmonyState::Head { text: head, begin: HeadBegin::Text } => {
                push_text(format!("{CHANNEL}{head}{text}"), events);
            }
            HarmonyState::Head { text: head, begin } => {
                let head = head + text;
                match head.split_once(MESSAGE) {
                    Some((head, rest)) => {
                        self.open(head, events);
                        self.add_text(rest, events);
                    }
                    None if head.len() > 2 * MAX_NAME => push_text(head, events),
                    None => self.state = HarmonyState::Head { text: head, begin },
                }
            }
            HarmonyState::Arguments(arguments) => self.add_arguments(arguments, text, events),
            HarmonyState::After(before) => {
                let all = before + text;
                if "assistant".starts_with(all.trim()) {
                    self.state = HarmonyState::After(all);
                } else {
                    push_text(all, events);
                }
            }
        }
    }

    fn add_marker(&mut self, marker: &str, events: &mut Vec<ToolEvent>) {
        self.state = match (marker, mem::replace(&mut self.state, HarmonyState::Text)) {
            (MESSAGE, HarmonyState::Head { text, .. }) => return self.open(&text, events),
            (CONSTRAIN, HarmonyState::Head { text, begin: HeadBegin::Marker }) => {
                HarmonyState::Head { text: text + CONSTRAIN, begin: HeadBegin::Marker }
            }
            (CHANNEL, HarmonyState::Text | HarmonyState::After(_)) => {
                HarmonyState::Head { text: String::new(), begin: HeadBegin::Marker }
            }
            (_, HarmonyState::Arguments(arguments)) => {
                events.push(arguments.malformed());
                HarmonyState::Text
            }
            (_, HarmonyState::Head { text, begin: HeadBegin::Text }) => {
                push_text(CHANNEL.to_owned() + &text, events);
                HarmonyState::Text
            }
            (START | END, HarmonyState::Text) | (_, HarmonyState::After(_)) => {
                HarmonyState::After(String::new())
            }
            (_, HarmonyState::Text | HarmonyState::Head { .. }) => HarmonyState::Text,
        };
    }

    /// Begins the message after a header.
    fn open(&mut self, header: &str, events: &mut Vec<ToolEvent>) {
        let head = format!("{CHANNEL}{header}{MESSAGE}");
        let Some(recipient) = word_after(header, "to=") else { return };
        match recipient.strip_prefix("functions.").filter(|name| is_callable(name, &self.names)) {
            Some(name) => {
                events.push(ToolEvent::Begin { name: name.to_owned(), id: None });
                self.state = HarmonyState::Arguments(CallArguments {
                    head,
                    json: String::new(),
                    depth: 0,
                    in_string: false,
                    escaped: false,
                });
            }
            None => push_text(head, events),
        }
    }

    fn add_arguments(&mut self, mut arguments: CallArguments, text: &str, events: &mut Vec<ToolEvent>) {
        let end = arguments.take(text);
        let length = end.unwrap_or(text.len());
        if arguments.json.len() > MAX_CALL {
            events.push(arguments.malformed());
        } else if end.is_none() {
            push_arguments(&text[..length], events);
            self.state = HarmonyState::Arguments(arguments);
            return;
        } else if arguments.is_object() {
            push_arguments(&text[..length], events);
            events.push(ToolEvent::End);
            self.state = HarmonyState::After(String::new());
        } else {
            events.push(arguments.malformed());
        }
        self.add_text(&text[length..], events);
    }
}

impl CallArguments {
    /// Takes the next text of the object. Returns the length of the part of it that ends the object, or that shows that it is
    /// none.
    fn take(&mut self, text: &str) -> Option<usize> {
        for (at, c) in text.char_indices() {
            self.json.push(c);
            if self.depth == 0 && c != '{' {
                if c.is_whitespace() {
                    continue;
                }
                return Some(at + c.len_utf8());
            }
            let is_quote = c == '"' && !self.escaped;
            self.escaped = self.in_string && c == '\\' && !self.escaped;
            self.in_string ^= is_quote;
            match c {
                '{' | '[' if !self.in_string => self.depth += 1,
                '}' | ']' if !self.in_string => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + c.len_utf8());
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Returns true if the text is an object.
    fn is_object(&self) -> bool {
        serde_json::from_str(&self.json).is_ok_and(|value: Value| value.is_object())
    }

    fn malformed(self) -> ToolEvent {
        ToolEvent::Malformed(self.head + &self.json)
    }
}

impl CallSyntax for HarmonyCalls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        if self.has_tokens {
            return self.add_text(text, events);
        }
        self.held.push_str(text);
        let first =
            |held: &str| MARKERS.iter().filter_map(|marker| Some((held.find(marker)?, *marker))).min();
        while let Some((at, marker)) = first(&self.held) {
            let before: String = self.held.drain(..at).collect();
            self.held.drain(..marker.len());
            self.add_text(&before, events);
            self.add_marker(marker, events);
        }
        let end = self.held.len() - overlap(&self.held, &MARKERS);
        let text: String = self.held.drain(..end).collect();
        self.add_text(&text, events);
    }

    fn push_marker(&mut self, marker: &str, events: &mut Vec<ToolEvent>) {
        self.add_marker(marker, events);
    }

    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>) {
        let rest = mem::take(&mut self.held);
        if end == TextEnd::Complete {
            self.add_text(&rest, events);
        }
        match mem::replace(&mut self.state, HarmonyState::Text) {
            HarmonyState::Arguments(arguments) => events.push(arguments.malformed()),
            HarmonyState::Head { text, .. } if end == TextEnd::Complete => {
                push_text(CHANNEL.to_owned() + &text, events);
            }
            HarmonyState::Text | HarmonyState::Head { .. } | HarmonyState::After(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tools::examples::{Examples, TemplateExample, WEATHER, complete, cut};

    /// Returns answers after OpenAI's description of the format.
    pub(super) fn examples() -> Examples {
        let head = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>";
        let call = format!("{head}{{\"city\": \"Brno\", \"days\": 2}}");
        let more = "<|start|>assistant<|channel|>commentary to=functions.stop json<|message|>{}";
        let transcripts = vec![
            complete(&call, WEATHER),
            complete(format!("{call}<|call|>"), WEATHER),
            complete(format!("{call}<|call|>{more}<|call|>"), format!("{WEATHER} stop( {{}} )")),
            complete("<|channel|>final<|message|>Hi", "\"Hi\""),
            complete("Hi <|", "\"Hi <|\""),
            complete(
                format!("<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant{call}"),
                format!("\"Wait.\" {WEATHER}"),
            ),
            complete(
                format!("{head}Brno<|call|>"),
                format!("get_weather( malformed {:?} \"rno\"", head.to_owned() + "B"),
            ),
            cut(format!("{head}{{\"city\": \"Br"), "{\"city\": \"Br"),
        ];
        let difference =
            Some("the recipient before the channel, and no marker before the type of the arguments");
        let template = TemplateExample { difference, end: "<|call|>", ..TemplateExample::new("gpt-oss") };
        Examples { max_calls: 1, ..Examples::new(vec![template], transcripts) }
    }
}
