//! Python calls of Llama 3.2 and 4: the answer is a list, such as `[f(a=1), g()]`. A call without a list is also
//! accepted.

use std::mem;

use super::{FormatDefinition, FormatOptions};
use crate::{
    grammar::GrammarError,
    tools::{
        CallKind, CallLimit, CallSyntax, MAX_CALL, MAX_NAME, ParserContext, TextEnd, ToolEvent, finish_text,
        is_callable,
        keywords::{ArgumentStep, argument, cut_argument, keyword_rules, keyword_text},
        lark::{AllowedCalls, BareRules, Callable, FormatRules, SPACE, names, one_of, quoted, regex},
        overlap, push_text, tool_names,
        write::joined,
    },
};

/// Marker that may precede the list.
const OPEN: &str = "<|python_tag|>";

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains("[func_name1("),
    markers: &[OPEN],
    parser: |context| Some(Box::new(PythonCalls::new(context))),
    rules,
    write: |calls, message| {
        let calls = joined(calls, ", ", |call| format!("{}({})", call.name, keyword_text(&call.arguments)));
        message.content.push_str(&format!("[{calls}]"));
    },
    options: FormatOptions::BASE,
    #[cfg(test)]
    examples: tests::examples,
};

/// Parser of calls in Python.
#[derive(Debug)]
struct PythonCalls {
    names: Vec<String>,
    held: String,
    raw: String,
    state: PythonState,
    is_list: bool,
    /// Set if the marker is not a token, so that its text may precede the calls.
    has_text_marker: bool,
    /// Set after the marker.
    is_marked: bool,
    /// Set once text was reported that is not white space.
    has_text: bool,
    calls: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PythonState {
    /// At the beginning of the answer.
    Start,
    /// Before the name of a function.
    Name,
    /// In the arguments of a function.
    Arguments,
    /// After a call.
    Between,
    Text,
}

fn rules(allowed: &AllowedCalls<'_>) -> Result<FormatRules, GrammarError> {
    let functions = allowed.functions;
    let count = allowed.functions.len();
    let more = match allowed.limit {
        CallLimit::One => "",
        CallLimit::Any => "(\", \" call)*",
    };
    let mut rules = format!(
        "calls: first {more} \"]\"\nfirst: {}\ncall: {}\n",
        one_of("first", count),
        one_of("call", count)
    );
    for (index, Callable { name, parameters }) in functions.iter().enumerate() {
        let rule = format!("keywords_{index}");
        // The bracket and the name are one lexeme, so that the lexer can distinguish a call from text.
        let first = quoted(&format!("[{name}("));
        let head = quoted(&format!("{name}("));
        rules.push_str(&format!("first_{index}: {first} {rule} \")\"\ncall_{index}: {head} {rule} \")\"\n"));
        rules.push_str(&keyword_rules(&rule, parameters)?);
    }
    let open = format!("(\\[|{}{SPACE}\\[?)", regex(OPEN));
    let begin = format!("{SPACE}{open}{SPACE}{}\\(", names(functions));
    let bare = Some(BareRules { begin, rules: "bare: calls\n".to_owned() });
    Ok(FormatRules { rules, markers: &[], bare, head: None })
}

impl PythonCalls {
    /// Creates the parser. Calls after the token of the marker are not withheld, other calls that the grammar does not
    /// guarantee are.
    fn new(context: &ParserContext<'_>) -> Self {
        let is_marked_only = context.calls == CallKind::Marked;
        Self {
            names: tool_names(context.tools),
            held: String::new(),
            raw: String::new(),
            state: if is_marked_only { PythonState::Text } else { PythonState::Start },
            is_list: false,
            has_text_marker: !context.has_tokens,
            is_marked: false,
            has_text: false,
            calls: 0,
        }
    }

    fn take(&mut self, length: usize) {
        self.raw.extend(self.held.drain(..length));
    }

    /// Parses the next element. Returns false if it needs more text.
    fn step(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        self.take_space();
        match self.state {
            PythonState::Start => self.start(),
            PythonState::Name => self.name(events),
            PythonState::Arguments => self.arguments(events),
            PythonState::Between => self.between(),
            PythonState::Text => {
                let text = mem::take(&mut self.raw) + &mem::take(&mut self.held);
                self.has_text |= !text.trim().is_empty();
                push_text(text, events);
                false
            }
        }
    }

    fn take_space(&mut self) {
        if self.state != PythonState::Text {
            self.take(self.held.len() - self.held.trim_start().len());
        }
    }

    fn start(&mut self) -> bool {
        if self.held.is_empty() {
            return false;
        }
        if self.has_text_marker && self.held.starts_with(OPEN) {
            self.take(OPEN.len());
            self.is_marked = true;
        } else if self.has_text_marker && overlap(&self.held, &[OPEN]) == self.held.len() {
            return false;
        } else if self.held.starts_with('[') {
            self.take(1);
            (self.is_list, self.state) = (true, PythonState::Name);
        } else if self.held.starts_with(|c: char| c.is_alphabetic() || c == '_') && self.is_marked {
            self.state = PythonState::Name;
        } else {
            self.state = PythonState::Text;
        }
        true
    }

    fn name(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        match self.held.find(|c: char| !c.is_alphanumeric() && !"_.-".contains(c)) {
            Some(end) if self.held[end..].starts_with('(') && is_callable(&self.held[..end], &self.names) => {
                let name = self.held[..end].to_owned();
                self.take(end + 1);
                events.push(ToolEvent::Begin { name, id: None });
                self.state = PythonState::Arguments;
            }
            None if self.may_be_name() => return false,
            Some(_) | None => self.state = PythonState::Text,
        }
        true
    }

    /// Returns true if the held text may be the beginning of a function's name.
    fn may_be_name(&self) -> bool {
        let may_be_listed =
            self.names.is_empty() || self.names.iter().any(|name| name.starts_with(&self.held));
        self.held.len() <= MAX_NAME && may_be_listed
    }

    /// Returns true if no argument of the call was parsed yet.
    fn is_first(&self) -> bool {
        self.raw.trim_end().ends_with('(')
    }

    fn arguments(&mut self, events: &mut Vec<ToolEvent>) -> bool {
        match argument(&self.held, self.is_first(), events) {
            ArgumentStep::Argument(length) => self.take(length),
            ArgumentStep::End(length) => {
                self.take(length);
                self.raw.clear();
                self.calls += 1;
                self.state = PythonState::Between;
            }
            ArgumentStep::Wait if self.held.len() <= MAX_CALL => return false,
            ArgumentStep::Wait | ArgumentStep::Bad => self.fail(events),
        }
        true
    }

    fn between(&mut self) -> bool {
        let Some(next) = self.held.chars().next() else { return false };
        match next {
            ',' | ';' => self.state = PythonState::Name,
            ']' if self.is_list => self.is_list = false,
            _ => {
                self.state = PythonState::Text;
                return true;
            }
        }
        self.take(1);
        self.raw.clear();
        true
    }

    fn fail(&mut self, events: &mut Vec<ToolEvent>) {
        events.push(ToolEvent::Malformed(mem::take(&mut self.raw)));
        self.state = PythonState::Text;
    }
}

impl CallSyntax for PythonCalls {
    fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.held.push_str(text);
        while self.step(events) {}
    }

    fn push_marker(&mut self, _: &str, _: &mut Vec<ToolEvent>) {
        let is_start = matches!(self.state, PythonState::Start | PythonState::Text);
        if is_start && !self.has_text && self.calls == 0 && self.raw.trim().is_empty() {
            self.is_marked = true;
            self.state = PythonState::Start;
        }
    }

    fn finish(&mut self, end: TextEnd, events: &mut Vec<ToolEvent>) {
        if self.state == PythonState::Arguments && end == TextEnd::Cut {
            cut_argument(&self.held, self.is_first(), events);
        }
        self.take(self.held.len());
        let rest = mem::take(&mut self.raw);
        match self.state {
            PythonState::Arguments => events.push(ToolEvent::Malformed(rest)),
            _ if self.calls > 0 && rest.trim().is_empty() => {}
            PythonState::Start if self.has_text_marker && !self.is_marked => {
                finish_text(rest, &[OPEN], end, events);
            }
            _ => push_text(rest, events),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tools::examples::{Examples, WEATHER, complete, cut};

    /// Returns answers after Meta's prompt format of Llama 3.2 and 4 for calls in Python.
    pub(super) fn examples() -> Examples {
        let transcripts = vec![
            complete("[get_weather(city='Brno', days=2), stop()]", format!("{WEATHER} stop( {{}} )")),
            complete("<|python_tag|>get_weather(city=\"Brno\", days=2)", WEATHER),
            complete("[1, 2]", r#""[1, 2]""#),
            complete("[get_weather(city='a]),(\\'')]", r#"get_weather( {"city":"a]),('"} )"#),
            complete("[get_weather(5)]", r#""[get_weather(5)]""#),
            complete("[get_weather(city='x", r#""[get_weather(city='x""#),
            complete("[get_weather(city=5)]", r#""[get_weather(city=5)]""#),
            complete("[stop()] stops it.", r#""[stop()] stops it.""#),
            complete("Sunny [today].", r#""Sunny [today].""#),
            cut("[get_weather(", ""),
            cut("[get_weather(ci", r#"{"ci"#),
            cut("[get_weather(city=", r#"{"city": "#),
            cut(r"[get_weather(city='Br\'n\", r#"{"city": "Br'n"#),
            cut("[get_weather(city='Brno', days=1", r#"{"city": "Brno", "days": 1"#),
            cut("[get_weather(city='Brno', ", r#"{"city": "Brno""#),
            cut(r#"[get_weather(**{"a-b": "x"#, r#"{"a-b": "x"#),
        ];
        let templates = vec![];
        Examples { has_keywords: true, ..Examples::new(templates, transcripts) }
    }
}
