//! Parsers of a model's answer: its reasoning and its tool calls. Three bytes before the answer select the format of
//! the calls by its place in [`ToolFormat::ALL`], the options, and the length of the pieces in which the answer is parsed
//! once more.

use narthex_spec::{ReasoningFormat, ToolFormat};
use narthex_text::tools::{CallReading, ReasoningEvent, ReasoningParser, TextEnd, ToolEvent, ToolParser};
use serde_json::{Value, json};

/// Options of a parse, as bits of the second byte. The other bits have no meaning.
#[derive(Debug, Clone, Copy)]
struct Options(u8);

impl Options {
    fn reading(self) -> CallReading {
        if self.0 & 1 == 0 { CallReading::Exact } else { CallReading::Lenient }
    }

    fn end(self) -> TextEnd {
        if self.0 & 2 == 0 { TextEnd::Complete } else { TextEnd::Cut }
    }

    fn reasoning(self) -> ReasoningFormat {
        match self.0 >> 2 & 3 {
            0 => ReasoningFormat::Think,
            1 => ReasoningFormat::MistralThink,
            _ => ReasoningFormat::ThinkResponse,
        }
    }
}

/// Parses an answer as a whole and in pieces.
///
/// # Errors
/// The reason if the input is too short or not UTF-8, or if the answer contains no complete call.
///
/// # Panics
/// The division of the answer changes the result, or a call is not reported as the engine expects.
pub fn read(data: &[u8]) -> Result<(), String> {
    let (&[format, options, length], answer) =
        data.split_first_chunk().ok_or("expected three bytes before the answer")?;
    let format = ToolFormat::ALL[usize::from(format) % ToolFormat::ALL.len()];
    let options = Options(options);
    let answer = std::str::from_utf8(answer).map_err(|error| error.to_string())?;
    let whole = parse(format, options, &[answer]);
    let divided = parse(format, options, &pieces(answer, usize::from(length).max(1)));
    assert_eq!(divided, whole, "the division into pieces of {length} changes the result");
    check_order(&whole.1);
    if whole.1.contains(&ToolEvent::End) { Ok(()) } else { Err("no complete call".to_owned()) }
}

/// Divides a text into pieces of at least `length` bytes.
fn pieces(text: &str, length: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = (length..rest.len()).find(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
        let (piece, more) = rest.split_at(end);
        pieces.push(piece);
        rest = more;
    }
    pieces
}

/// Returns the reasoning of an answer and the events of its text. Adjacent events of one kind are joined.
fn parse(format: ToolFormat, options: Options, pieces: &[&str]) -> (String, Vec<ToolEvent>) {
    let mut reasoning = ReasoningParser::new(options.reasoning(), "");
    let mut calls = ToolParser::new(format, &tools(), options.reading(), &[]);
    let mut thoughts = String::new();
    let mut events = Vec::new();
    let mut take = |parts: Vec<ReasoningEvent>, calls: &mut ToolParser| {
        for part in parts {
            match part {
                ReasoningEvent::Reasoning(text) => thoughts.push_str(&text),
                ReasoningEvent::Text(text) => events.extend(calls.push(&text)),
            }
        }
    };
    for piece in pieces {
        take(reasoning.push(piece), &mut calls);
    }
    take(reasoning.finish(), &mut calls);
    events.extend(calls.finish(options.end()));
    (thoughts, joined(events))
}

fn joined(events: Vec<ToolEvent>) -> Vec<ToolEvent> {
    let mut joined: Vec<ToolEvent> = Vec::new();
    for event in events {
        match (joined.last_mut(), event) {
            (Some(ToolEvent::Text(last)), ToolEvent::Text(more)) => last.push_str(&more),
            (Some(ToolEvent::Arguments(last)), ToolEvent::Arguments(more)) => last.push_str(&more),
            (_, event) => joined.push(event),
        }
    }
    joined
}

/// Checks that arguments and ends belong to a call that has begun, and that the arguments of a complete call are a JSON
/// object.
fn check_order(events: &[ToolEvent]) {
    let mut call: Option<String> = None;
    for event in events {
        match event {
            ToolEvent::Text(_) | ToolEvent::Malformed(_) => call = None,
            ToolEvent::Begin { .. } => call = Some(String::new()),
            ToolEvent::Arguments(text) => {
                call.as_mut().expect("arguments of a call that has begun").push_str(text);
            }
            ToolEvent::End => {
                let arguments = call.take().expect("the end of a call that has begun");
                let value: Result<Value, _> = serde_json::from_str(&arguments);
                assert!(value.as_ref().is_ok_and(Value::is_object), "{arguments:?}: {value:?}");
            }
        }
    }
}

/// Returns two functions.
fn tools() -> Vec<Value> {
    let tool = |name: &str, properties: Value| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}});
    let parameters =
        json!({"city": {"type": "string"}, "days": {"type": "integer"}, "all": {"type": "boolean"}});
    vec![tool("get_weather", parameters), tool("stop", json!({}))]
}
