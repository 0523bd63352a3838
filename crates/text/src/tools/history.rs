//! Conversations that go on after a call: the tokens of the prompt and of the answer are the beginning of the next prompt,
//! so that it shares their computation.

use std::collections::BTreeMap;

use narthex_spec::{Date, ToolFormat};
use serde_json::json;

use super::{
    adapted,
    examples::{source, tools},
    guarantees::{tokenizer, write_calls},
    markers, tool_format,
};
use crate::{
    prompt,
    template::{ChatTemplate, FunctionCall, Message, RenderOptions, Role, ToolCall},
    tokenizer::{Specials, Tokenizer},
};

/// Templates of chat models.
const TEMPLATES: [&str; 21] = [
    "chatglm3",
    "gemma2",
    "gemma3",
    "granite3.3",
    "granite4",
    "hermes3",
    "llama3",
    "llama3.1",
    "llama3.2",
    "ministral3",
    "mistral-nemo",
    "mistral-v0.1",
    "mistral-v0.2",
    "mistral-v0.3",
    "phi3.5",
    "phi4-mini",
    "qwen2.5",
    "qwen3",
    "qwen3-coder",
    "smollm2",
    "smollm3",
];

/// Templates that write a call in another way than the model, with the text that differs.
const EXCEPTIONS: [(&str, &str); 4] = [
    ("chatglm3", "a line break and a space before the text of every message"),
    ("mistral-nemo", "the id of a call, which the server chooses"),
    ("mistral-v0.2", "a space before the text of an answer"),
    ("mistral-v0.3", "a space before the list of calls, and their ids"),
];

/// Returns the tokens of a prompt.
fn tokens(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    format: ToolFormat,
    messages: &[Message],
) -> Vec<u32> {
    let abilities = template.abilities();
    let messages = adapted(messages.to_vec(), format, abilities);
    let mut options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
    if abilities.tools {
        options.tools = tools();
    }
    prompt::tokens(tokenizer, template, &messages, &options, None).unwrap()
}

/// Returns true if the next prompt begins with the prompt and the answer.
fn continues(name: &str) -> bool {
    let source = source(name);
    let format = tool_format(&source).unwrap_or(ToolFormat::Hermes);
    let specials = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let specials = specials.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let template = ChatTemplate::new(&source, BTreeMap::from(specials)).unwrap();
    let tokenizer =
        tokenizer(&[&["<|end|>", "<tool_response>", "</tool_response>"], markers(format)].concat());
    let function = FunctionCall {
        name: "get_weather".to_owned(),
        arguments: json!({"city": "</tool_call>", "days": 2}),
    };
    let answer = match name {
        "ministral3" => format!("[TOOL_CALLS]get_weather[ARGS]{}", super::json_text(&function.arguments)),
        _ => write_calls(format, std::slice::from_ref(&function)),
    };
    let id = Some("abcdefghi".to_owned());
    let call = ToolCall { id: id.clone(), function };
    let history = [
        Message::new(Role::User, "<tool_call>?".to_owned()),
        Message { tool_calls: vec![call], ..Message::new(Role::Assistant, String::new()) },
        Message { tool_call_id: id, ..Message::new(Role::Tool, "sunny".to_owned()) },
    ];
    let mut before = tokens(&tokenizer, &template, format, &history[..1]);
    before.extend(own_tokens(&tokenizer, format, &answer));
    tokens(&tokenizer, &template, format, &history).starts_with(&before)
}

/// Returns the tokens that a model writes: tokens for the markers, and text for the same characters in an argument.
fn own_tokens(tokenizer: &Tokenizer, format: ToolFormat, answer: &str) -> Vec<u32> {
    let (first, last) = (markers(format).first(), markers(format).last());
    let (mut tokens, mut rest, mut end) = (Vec::new(), answer, None);
    if let Some((marker, text)) = first.and_then(|first| Some((first, rest.strip_prefix(first)?))) {
        tokens.extend(tokenizer.token_id(marker));
        rest = text;
    }
    if let Some((marker, text)) = last.and_then(|last| Some((last, rest.strip_suffix(last)?))) {
        end = tokenizer.token_id(marker);
        rest = text;
    }
    for (index, part) in rest.split("[ARGS]").enumerate() {
        if index > 0 {
            tokens.extend(tokenizer.token_id("[ARGS]"));
        }
        tokens.extend(tokenizer.encode(part, Specials::AsText).unwrap());
    }
    tokens.extend(end);
    tokens
}

#[test]
fn the_next_prompt_begins_with_the_prompt_and_the_answer() {
    let differ: Vec<&str> = TEMPLATES.into_iter().filter(|name| !continues(name)).collect();
    assert_eq!(differ, EXCEPTIONS.map(|(name, _)| name));
}

#[test]
fn markers_in_text_and_arguments_are_no_tokens() {
    let tokenizer = tokenizer(&["<|end|>", "<tool_call>", "</tool_call>"]);
    let template = ChatTemplate::new(&source("smollm2"), BTreeMap::new()).unwrap();
    let function =
        FunctionCall { name: "stop".to_owned(), arguments: json!({"a": "<tool_call></tool_call>"}) };
    let message = Message {
        tool_calls: vec![ToolCall { id: None, function }],
        ..Message::new(Role::Assistant, "<tool_call>".to_owned())
    };
    let history = [Message::new(Role::User, "</tool_call>".to_owned()), message];
    let tokens = tokens(&tokenizer, &template, ToolFormat::Hermes, &history);
    let special: Vec<u32> = tokens.into_iter().filter(|&token| tokenizer.is_special(token)).collect();
    assert_eq!(special, ["<tool_call>", "</tool_call>"].map(|marker| tokenizer.token_id(marker).unwrap()));
}
