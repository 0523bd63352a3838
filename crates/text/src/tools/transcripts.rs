//! Answers of models in each format, divided at every position; and calls that templates write and parsers read.
//!
//! The answers were written by hand after the sources that each test names; none was recorded from a model.

use std::collections::BTreeMap;

use narthex_spec::{Date, ToolFormat};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    CallReading, ReasoningEvent, ReasoningParser, TextEnd, ToolEvent, ToolParser, adapted, reasoning_format,
    tool_format,
};
use crate::template::{
    Abilities, ChatTemplate, FunctionCall, GenerationPrompt, Message, RenderOptions, Role, ToolCall,
};

pub(super) fn tools() -> Vec<Value> {
    let tool = |name: &str, properties: Value| {
        json!({"type": "function", "function": {"name": name, "description": name,
            "parameters": {"type": "object", "properties": properties}}})
    };
    vec![
        tool("get_weather", json!({"city": {"type": "string"}, "days": {"type": "integer"}})),
        tool("stop", json!({})),
    ]
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

fn parsed(format: ToolFormat, parts: &[&str]) -> Vec<ToolEvent> {
    ended(format, parts, TextEnd::Complete)
}

fn ended(format: ToolFormat, parts: &[&str], end: TextEnd) -> Vec<ToolEvent> {
    let mut parser = ToolParser::new(format, &tools(), CallReading::Lenient);
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

fn check(format: ToolFormat, answer: &str, expect: &str) {
    let whole = parsed(format, &[answer]);
    assert_eq!(shown(&whole), expect, "{format:?}: {answer}");
    let places: Vec<usize> = (0..=answer.len()).filter(|&at| answer.is_char_boundary(at)).collect();
    for &at in &places {
        let (first, second) = answer.split_at(at);
        assert_eq!(parsed(format, &[first, second]), whole, "{format:?}: {first:?} {second:?}");
    }
    let characters: Vec<&str> = places.windows(2).map(|pair| &answer[pair[0]..pair[1]]).collect();
    assert_eq!(parsed(format, &characters), whole, "{format:?}: {answer:?} by characters");
}

const WEATHER: &str = r#"get_weather( {"city":"Brno","days":2} )"#;

/// Written after the chat templates of Hermes 3 and Qwen 2.5, which show calls to the model.
#[test]
fn hermes() {
    let check = |answer: &str, expect: &str| check(ToolFormat::Hermes, answer, expect);
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Brno\", \"days\": 2}}\n</tool_call>";
    check(call, WEATHER);
    check(&format!("I look.\n\n{call}\n{call}\n"), &format!("\"I look.\" {WEATHER} {WEATHER}"));
    check(&format!("{call}\nDone."), &format!("{WEATHER} \"\\nDone.\""));
    check(
        "<tool_call>[{\"name\":\"stop\",\"arguments\":{}},{\"name\":\"stop\"}]</tool_call>",
        "stop( {} ) stop( {} )",
    );
    check(
        r#"<tool_call>{"arguments": {"city": "a \"}\" é\\"}, "name": "get_weather"}</tool_call>"#,
        r#"get_weather( {"city":"a \"}\" é\\"} )"#,
    );
    check(
        r#"<tool_call>{"name":"get_weather","arguments":"{\"city\":\"x\"}"}</tool_call>"#,
        r#"get_weather( {"city":"x"} )"#,
    );
    check("a < b, <tool> and <tool_", r#""a < b, <tool> and <tool_""#);
    check(
        "<tool_call>\nget_weather(1)</tool_call> x",
        r#"malformed "<tool_call>\n" "get_weather(1)</tool_call> x""#,
    );
    check("<tool_call>{\"name\": \"stop\", \"argu", r#"malformed "<tool_call>{\"name\": \"stop\", \"argu""#);
    check(
        "<tool_call>{\"name\":\"stop\",\"arguments\":{\"a\": tru}} x",
        r#"stop( broken "{\"a\": tru}" malformed "<tool_call>{\"name\":\"stop\",\"arguments\":{\"a\": tru}" "} x""#,
    );
    check("plain\n", r#""plain\n""#);
}

/// Written after reports of answers of Qwen2.5-Coder, which leaves out or replaces the markers of its own template.
#[test]
fn hermes_without_markers() {
    let check = |answer: &str, expect: &str| check(ToolFormat::Hermes, answer, expect);
    let call = r#"{"name": "get_weather", "arguments": {"city": "Brno", "days": 2}}"#;
    check(call, WEATHER);
    check(&format!("\n{call}\n{call}\n"), &format!("{WEATHER} {WEATHER}"));
    check(&format!("{call}</tool_call>"), WEATHER);
    check(&format!("```json\n{call}\n```"), WEATHER);
    check(&format!("```json\n[{call},\n{call}]\n```\nDone."), &format!("{WEATHER} {WEATHER} \"\\nDone.\""));
    check(&format!("<tools>\n{call}\n{{\"name\": \"stop\"}}\n</tools>"), &format!("{WEATHER} stop( {{}} )"));
    check(&format!("<tools>\n{call}\n</tools>\n<tools>{call}"), &format!("{WEATHER} {WEATHER}"));
    check(&format!("<tool_call>\n{call}\n</tool_call>\n{call}"), &format!("{WEATHER} {WEATHER}"));
    // Other objects, and objects after text, are no calls.
    for text in [
        r#"{"name": "Ann", "arguments": {}}"#,
        r#"{"name": "Ann", "age": 5}"#,
        "```json\n{\"name\": \"other\", \"arguments\": {}}\n```",
        "```json\n[1, 2]\n```",
        "```python\nget_weather()\n```",
        "```js",
        "<tools> are <b>",
        "{",
        &format!("Here:\n{call}"),
        &format!("Here:\n```json\n{call}\n```"),
    ] {
        check(text, &format!("{text:?}"));
    }
    check(
        "{\"name\": \"stop\", \"arguments\": {\"a\": 1",
        r#"stop( broken "{\"a\": 1" malformed "{\"name\": \"stop\", \"arguments\": {\"a\": 1""#,
    );
    let mut exact = ToolParser::new(ToolFormat::Hermes, &tools(), CallReading::Exact);
    assert_eq!(
        [exact.push(call), exact.finish(TextEnd::Complete)].concat(),
        [ToolEvent::Text(call.to_owned())]
    );
}

/// Written after Meta's prompt format of Llama 3.1 for JSON calls, with `<|python_tag|>` as of built-in tools.
#[test]
fn llama() {
    let check = |answer: &str, expect: &str| check(ToolFormat::LlamaJson, answer, expect);
    let call = r#"{"name": "get_weather", "parameters": {"city": "Brno", "days": 2}}"#;
    check(call, WEATHER);
    check(&format!("<|python_tag|>{call}; {call}"), &format!("{WEATHER} {WEATHER}"));
    check(&format!("\n{{\"type\": \"function\", {}", &call[1..]), WEATHER);
    check(r#"{"name": "Ann", "age": 5}"#, r#""{\"name\": \"Ann\", \"age\": 5}""#);
    check(r#"{"city": "Brno"}"#, r#""{\"city\": \"Brno\"}""#);
    check("It is {warm}.", r#""It is {warm}.""#);
}

/// Written after Meta's prompt format of Llama 3.2 and 4 for calls in Python.
#[test]
fn pythonic() {
    let check = |answer: &str, expect: &str| check(ToolFormat::Pythonic, answer, expect);
    check("[get_weather(city='Brno', days=2), stop()]", &format!("{WEATHER} stop( {{}} )"));
    check("<|python_tag|>get_weather(city=\"Brno\", days=2)", WEATHER);
    check("[1, 2]", r#""[1, 2]""#);
    check("[get_weather(city='a]),(\\'')]", r#"get_weather( {"city":"a]),('"} )"#);
    check("[get_weather(5)]", r#"get_weather( malformed "[get_weather(" "5)]""#);
    check("[get_weather(city='x", r#"get_weather( malformed "[get_weather(city='x""#);
    check("Sunny [today].", r#""Sunny [today].""#);
}

/// Written after the chat template of Qwen3 Coder, which shows calls to the model.
#[test]
fn qwen_coder() {
    let check = |answer: &str, expect: &str| check(ToolFormat::QwenCoder, answer, expect);
    let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nBrno\n</parameter>\n<parameter=days>\n2\n</parameter>\n\
        </function>\n</tool_call>";
    check(call, WEATHER);
    check(&format!("So:\n{call}\n{call}"), &format!("\"So:\" {WEATHER} {WEATHER}"));
    check("<tool_call>\n<function=stop>\n</function>\n</tool_call>", "stop( {} )");
    check(
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n5\n</p>\n</parameter>\n</function>",
        r#"get_weather( {"city":"5\n</p>"} )"#,
    );
    check("<tool_call>\n<function=f>\n<other>", "f( malformed \"<tool_call>\\n<function=f>\\n\" \"<other>\"");
    check("<tool_call> x", "malformed \"<tool_call> \" \"x\"");
}

/// Written after the model cards of Phi-4 mini and Granite 3 and the chat templates of Mistral: that of Nemo for lists,
/// that of Ministral 3 for names before arguments.
#[test]
fn lists_after_a_marker() {
    let list = r#"[{"name": "get_weather", "arguments": {"city": "Brno", "days": 2}}, {"name": "stop", "arguments": {}}]"#;
    let both = format!("{WEATHER} stop( {{}} )");
    check(ToolFormat::Phi4Mini, &format!("<|tool_call|>{list}<|/tool_call|>"), &both);
    check(ToolFormat::Phi4Mini, &format!("functools{list}"), &both);
    check(ToolFormat::Phi4Mini, list, &both);
    check(ToolFormat::Phi4Mini, "[1, 2] and", r#""[1, 2] and""#);
    check(ToolFormat::Granite, &format!("<|tool_call|>{list}"), &both);
    check(ToolFormat::Mistral, &format!("[TOOL_CALLS]{list}"), &both);
    check(ToolFormat::Mistral, &format!("[TOOL_CALLS] {list}"), &both);
    let headed =
        r#"[TOOL_CALLS]get_weather[ARGS]{"city": "Brno", "days": 2}[TOOL_CALLS]stop[CALL_ID]a1[ARGS]{}"#;
    check(ToolFormat::Mistral, headed, &both);
    check(ToolFormat::Mistral, "[TOOL_CALLS]x y{", r#"malformed "[TOOL_CALLS]" "x y{""#);
    check(ToolFormat::Mistral, "[1]", r#""[1]""#);
}

/// Written after the description of tools in ChatGLM3's repository.
#[test]
fn chatglm() {
    let check = |answer: &str, expect: &str| check(ToolFormat::ChatGlm3, answer, expect);
    check("get_weather\n ```python\ntool_call(city='Brno', days=2)\n```", WEATHER);
    check("\n Hello there\nYou", r#""\n Hello there\nYou""#);
    check("get_weather\nis a tool", r#""get_weather\nis a tool""#);
    check("stop\n```python\ntool_call(x y", r#"stop( malformed "stop\n```python\ntool_call(" "x y""#);
}

#[test]
fn cut_calls_keep_what_the_model_wrote() {
    let check = |format: ToolFormat, answer: &str, expect: &str| {
        let whole = ended(format, &[answer], TextEnd::Cut);
        let arguments = whole.iter().find_map(|event| match event {
            ToolEvent::Arguments(text) => Some(text.as_str()),
            _ => None,
        });
        assert_eq!(arguments.unwrap_or_default(), expect, "{format:?}: {answer}");
        for at in (0..=answer.len()).filter(|&at| answer.is_char_boundary(at)) {
            let (first, second) = answer.split_at(at);
            assert_eq!(ended(format, &[first, second], TextEnd::Cut), whole, "{first:?} {second:?}");
        }
    };
    use ToolFormat::{ChatGlm3, Hermes, Pythonic, QwenCoder};
    check(Hermes, r#"<tool_call>{"name": "stop", "arguments": {"a": "x"#, r#"{"a": "x"#);
    check(Pythonic, "[get_weather(", "");
    check(Pythonic, "[get_weather(ci", r#"{"ci"#);
    check(Pythonic, "[get_weather(city=", r#"{"city": "#);
    check(Pythonic, r"[get_weather(city='Br\'n\", r#"{"city": "Br'n"#);
    check(Pythonic, "[get_weather(city='Brno', days=1", r#"{"city": "Brno", "days": 1"#);
    check(Pythonic, "[get_weather(city='Brno', ", r#"{"city": "Brno""#);
    check(Pythonic, r#"[get_weather(**{"a-b": "x"#, r#"{"a-b": "x"#);
    check(ChatGlm3, "stop\n ```python\ntool_call(city='Br", r#"{"city": "Br"#);
    let tag = "<tool_call>\n<function=get_weather>\n<parameter=";
    check(QwenCoder, &format!("{tag}cit"), "");
    check(QwenCoder, &format!("{tag}city>\nBr\"no\nx\n</param"), r#"{"city": "Br\"no\nx"#);
    check(QwenCoder, &format!("{tag}days>\n1"), r#"{"days": 1"#);
    check(
        QwenCoder,
        &format!("{tag}city>\na\n</parameter>\n<parameter=days>\n1"),
        r#"{"city": "a", "days": 1"#,
    );
}

#[test]
fn templates_name_their_formats() {
    let check =
        |name: &str, expect: Option<ToolFormat>| assert_eq!(tool_format(&source(name)), expect, "{name}");
    for name in ["qwen2.5", "qwen3", "hermes3", "granite4", "smollm3"] {
        let expect = if name == "smollm3" { None } else { Some(ToolFormat::Hermes) };
        check(name, expect);
    }
    check("qwen3-coder", Some(ToolFormat::QwenCoder));
    check("mistral-nemo", Some(ToolFormat::Mistral));
    check("phi4-mini", Some(ToolFormat::Phi4Mini));
    check("granite3.3", Some(ToolFormat::Granite));
    check("llama3.1", Some(ToolFormat::LlamaJson));
    check("llama3.2", Some(ToolFormat::LlamaJson));
    check("chatglm3", Some(ToolFormat::ChatGlm3));
    check("gemma3", None);
    check("smollm2", None);
}

#[test]
fn templates_write_what_they_claim() {
    let check = |name: &str, tools, calls, results| {
        let specials = BTreeMap::from([("eos_token".to_owned(), "</s>".to_owned())]);
        let template = ChatTemplate::new(&source(name), specials).unwrap();
        assert_eq!(template.abilities(), Abilities { tools, calls, results }, "{name}");
    };
    for name in
        ["qwen2.5", "qwen3", "qwen3-coder", "hermes3", "granite4", "llama3.1", "llama3.2", "mistral-nemo"]
    {
        check(name, true, true, true);
    }
    check("granite3.3", true, false, true);
    // The template writes results like the messages of any role.
    check("phi4-mini", true, false, true);
    for name in ["smollm2", "smollm3", "gemma3", "chatglm3"] {
        check(name, false, false, false);
    }
}

pub(super) fn source(name: &str) -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates");
    std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap()
}

/// Returns the call that a template writes for these arguments, as the parser reads it.
fn round_trip(name: &str, arguments: &Value) -> Vec<ToolEvent> {
    let source = source(name);
    let template =
        ChatTemplate::new(&source, BTreeMap::from([("eos_token".to_owned(), "</s>".to_owned())])).unwrap();
    let user = Message::new(Role::User, "?".to_owned());
    let function = FunctionCall { name: "get_weather".to_owned(), arguments: arguments.clone() };
    let mut assistant = Message::new(Role::Assistant, String::new());
    assistant.tool_calls = vec![ToolCall { id: Some("abcdefghi".to_owned()), function }];
    let mut options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
    options.tools = tools();
    let format = tool_format(&source).unwrap();
    let assistant = adapted(vec![assistant], format, template.abilities()).remove(0);
    let asked = template.render(std::slice::from_ref(&user), &options).unwrap().into_text();
    options.generation_prompt = GenerationPrompt::Leave;
    let answered = template.render(&[user, assistant], &options).unwrap().into_text();
    let shared = asked.bytes().zip(answered.bytes()).take_while(|(a, b)| a == b).count();
    let mut answer = &answered[..];
    // Some templates write the tools before the last question, with examples that are calls too.
    answer = &answer[shared.min(answer.len())..];
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
    parsed(format, &[&text])
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
        for name in [
            "qwen2.5", "qwen3", "granite4", "llama3.1", "llama3.2", "mistral-nemo", "mistral-v0.3", "hermes3",
            "ministral3", "granite3.3", "phi4-mini",
        ] {
            let events = round_trip(name, &arguments);
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
        let events = round_trip("qwen3-coder", &arguments);
        let Some(ToolEvent::Arguments(text)) = events.get(1) else { panic!("{events:?}") };
        prop_assert_eq!(serde_json::from_str::<Value>(text).unwrap(), arguments);
    }
}
