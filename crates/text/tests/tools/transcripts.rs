//! Answers of models in each format, divided at every position; and calls that templates write and parsers read.
//!
//! The answers of a format are in its file. They were written by hand after the sources that are named there; none was
//! recorded from a model.

use std::collections::BTreeMap;

use narthex_spec::{Date, ReasoningFormat, ToolFormat};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    CallReading, ReasoningEvent, ReasoningParser, TextEnd, ToolEvent, ToolParser, adapted,
    examples::{Examples, TemplateExample, Transcript, source, tools},
    formats::definition,
    markers, reasoning_format, tool_format,
};
use crate::template::{
    Abilities, ChatTemplate, FunctionCall, GenerationPrompt, Message, RenderOptions, Role, ToolCall,
};

/// Returns the test data of a format.
fn examples(format: ToolFormat) -> Examples {
    (definition(format).examples)()
}

/// Joins adjacent events, so that they do not depend on the division of the answer.
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

fn parsed(format: ToolFormat, parts: &[&str], end: TextEnd) -> Vec<ToolEvent> {
    // Only an answer that follows a grammar has calls without a marker that was cut off.
    let reading = match end {
        TextEnd::Complete => CallReading::Lenient,
        TextEnd::Cut => CallReading::Exact,
    };
    let mut parser = ToolParser::new(format, &tools(), reading, &[]);
    let mut events: Vec<ToolEvent> = parts.iter().flat_map(|part| parser.push(part)).collect();
    events.extend(parser.finish(end));
    joined(events)
}

/// Returns the events in one line.
fn shown(events: &[ToolEvent]) -> String {
    let shown = events.iter().map(|event| match event {
        ToolEvent::Text(text) => format!("{text:?}"),
        ToolEvent::Begin { name, .. } => format!("{name}("),
        ToolEvent::Arguments(text) => match serde_json::from_str::<Value>(text) {
            Ok(value) => value.to_string(),
            Err(_) => format!("broken {text:?}"),
        },
        ToolEvent::End => ")".to_owned(),
        ToolEvent::Malformed(text) => format!("malformed {text:?}"),
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Returns the arguments of the first call, as far as they were reported.
fn first_arguments(events: &[ToolEvent]) -> String {
    let arguments = events.iter().find_map(|event| match event {
        ToolEvent::Arguments(text) => Some(text.clone()),
        _ => None,
    });
    arguments.unwrap_or_default()
}

fn check(format: ToolFormat, transcript: &Transcript) {
    let (answer, end) = (transcript.answer.as_str(), transcript.end);
    let whole = parsed(format, &[answer], end);
    let found = match end {
        TextEnd::Complete => shown(&whole),
        TextEnd::Cut => first_arguments(&whole),
    };
    assert_eq!(found, transcript.expect, "{format:?}: {answer}");
    let places: Vec<usize> = (0..=answer.len()).filter(|&at| answer.is_char_boundary(at)).collect();
    for &at in &places {
        let (first, second) = answer.split_at(at);
        assert_eq!(parsed(format, &[first, second], end), whole, "{format:?}: {first:?} {second:?}");
    }
    let characters: Vec<&str> = places.windows(2).map(|pair| &answer[pair[0]..pair[1]]).collect();
    assert_eq!(parsed(format, &characters, end), whole, "{format:?}: {answer:?} by characters");
}

#[test]
fn events_do_not_depend_on_the_division_of_an_answer() {
    for &format in ToolFormat::ALL {
        let transcripts = examples(format).transcripts;
        assert!(!transcripts.is_empty(), "{format:?} has no transcripts");
        transcripts.iter().for_each(|transcript| check(format, transcript));
    }
}

#[test]
fn a_closing_marker_that_is_cut_off_is_no_text() {
    for marker in ["\n", "\n</", "\n</tool_call"] {
        let answer = format!("<tool_call>\n{{\"name\": \"stop\", \"arguments\": {{}}}}{marker}");
        assert_eq!(shown(&parsed(ToolFormat::Hermes, &[&answer], TextEnd::Cut)), "stop( {} )");
    }
}

#[test]
fn a_marker_that_is_cut_off_is_no_text() {
    for &format in ToolFormat::ALL {
        let Some(opening) = markers(format).first() else { continue };
        for length in 1..opening.len() {
            let events = parsed(format, &[&opening[..length]], TextEnd::Cut);
            assert!(events.is_empty(), "{format:?}: {events:?}");
        }
    }
}

#[test]
fn templates_name_their_formats() {
    for &format in ToolFormat::ALL {
        for TemplateExample { name, .. } in examples(format).templates {
            assert_eq!(tool_format(&source(name)), Some(format), "{name}");
        }
    }
    for name in ["smollm2", "smollm3", "gemma3"] {
        assert_eq!(tool_format(&source(name)), None, "{name}");
    }
}

#[test]
fn templates_name_their_reasoning() {
    use ReasoningFormat::{Harmony, MistralThink, Think, ThinkResponse, ThoughtChannel};
    let check = |name: &str, expect| assert_eq!(reasoning_format(&source(name)), expect, "{name}");
    check("qwen3", Some(Think));
    check("ministral3", Some(MistralThink));
    check("gpt-oss", Some(Harmony));
    check("granite3.3", Some(ThinkResponse));
    check("gemma4", Some(ThoughtChannel));
    check("llama3.1", None);
    // The results of tools have the same markers in other templates.
    let results = "<think></think>{{ '<response>' + message.content + '</response>' }}";
    assert_eq!(reasoning_format(results), Some(Think));
}

#[test]
fn templates_write_what_they_claim() {
    let check = |name: &str, expect: Abilities| {
        let specials = BTreeMap::from([("eos_token".to_owned(), "</s>".to_owned())]);
        let template = ChatTemplate::new(&source(name), specials).unwrap();
        assert_eq!(template.abilities(), expect, "{name}");
    };
    for template in ToolFormat::ALL.iter().flat_map(|&format| examples(format).templates) {
        check(template.name, template.abilities);
    }
    for name in ["smollm2", "smollm3", "gemma3"] {
        check(name, Abilities::default());
    }
}

/// Returns the call that a template writes for these arguments, as the parser reads it.
fn round_trip(example: &TemplateExample, arguments: &Value) -> Vec<ToolEvent> {
    let name = example.name;
    let source = source(name);
    let template =
        ChatTemplate::new(&source, BTreeMap::from([("eos_token".to_owned(), "</s>".to_owned())])).unwrap();
    let user = Message::new(Role::User, "?".to_owned());
    let function = FunctionCall { name: "get_weather".to_owned(), arguments: arguments.clone().into() };
    let mut assistant = Message::new(Role::Assistant, String::new());
    assistant.tool_calls = vec![ToolCall { id: Some("abcdefghi".to_owned()), function }];
    let mut options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
    options.tools = tools().into_iter().map(Into::into).collect();
    let format = tool_format(&source).unwrap();
    let assistant = adapted(vec![assistant], format, template.abilities()).remove(0);
    let asked = template.render(std::slice::from_ref(&user), &options).unwrap().into_text();
    options.generation_prompt = GenerationPrompt::Leave;
    let answered = template.render(&[user, assistant], &options).unwrap().into_text();
    let shared = asked.bytes().zip(answered.bytes()).take_while(|(a, b)| a == b).count();
    // Some templates write the tools before the last question, with examples that are calls too. A prompt may end with a
    // marker that begins like the call.
    let shared = answered[..shared].trim_end_matches(['<', '[', '|']).len();
    let mut answer = &answered[shared..];
    if !example.end.is_empty() {
        answer = answer.trim_end().strip_suffix(example.end).unwrap_or(answer);
    }
    for end in ["<|im_end|>\n", "<|eot_id|>", "</s>", "<|end|>", "<|end_of_text|>\n"] {
        answer = answer.strip_suffix(end).unwrap_or(answer);
    }
    let mut text = answer.trim_start().to_owned();
    if let Some(format) = reasoning_format(&source) {
        let mut parser = ReasoningParser::new(format, "");
        let events = [parser.push(&text), parser.finish()].concat();
        let parts = events.into_iter().map(|event| match event {
            ReasoningEvent::Text(text) => text,
            ReasoningEvent::Reasoning(text) => panic!("{name}: {text}"),
        });
        text = parts.collect();
    }
    parsed(format, &[&text], TextEnd::Complete)
}

fn json_values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~\n\t\"'\\\\é漢🙂]{0,12}".prop_map(Value::from),
        "[0-9]{1,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z\"é ]{1,5}", inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn calls_survive_their_template(pairs in prop::collection::vec(("[a-z_\"é]{1,6}", json_values()), 0..4)) {
        let arguments = Value::Object(pairs.into_iter().collect());
        let formats = ToolFormat::ALL.iter().map(|&format| examples(format)).filter(|one| !one.needs_types);
        for example in formats.flat_map(|one| one.templates) {
            let name = example.name;
            let events = round_trip(&example, &arguments);
            let [ToolEvent::Begin { name: called, .. }, ToolEvent::Arguments(text), ToolEvent::End] = &events[..] else {
                panic!("{name}: {events:?}");
            };
            prop_assert_eq!(called, "get_weather");
            prop_assert_eq!(&serde_json::from_str::<Value>(text).unwrap(), &arguments, "{}", name);
        }
    }

    #[test]
    fn tagged_values_survive_their_template(
        city in "[ -~\n\"'\\\\é漢🙂]{1,20}", days in any::<i32>(), nested in prop::collection::vec(json_values(), 0..3),
    ) {
        let arguments = json!({"city": city, "days": days, "nested": nested, "by_name": {"a": nested}});
        let events = round_trip(&TemplateExample::new("qwen3-coder"), &arguments);
        let Some(ToolEvent::Arguments(text)) = events.get(1) else { panic!("{events:?}") };
        prop_assert_eq!(serde_json::from_str::<Value>(text).unwrap(), arguments);
    }
}
