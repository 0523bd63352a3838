//! Conversations that go on after a call: the tokens of the prompt and of the answer are the beginning of the next prompt,
//! so that it shares their computation.

use std::{collections::BTreeMap, fs, path::Path};

use narthex_spec::{Date, ToolFormat};
use serde_json::json;

use super::{
    adapted,
    examples::{TemplateExample, source, tools},
    formats::definition,
    guarantees::{tokenizer, write_calls},
    markers, tool_format,
};
use crate::{
    exact_json::ExactJson,
    prompt,
    template::{ChatTemplate, FunctionCall, Message, RenderOptions, Role, ToolCall},
    tokenizer::{Specials, Tokenizer},
};

/// Templates without a format of their own that write an answer in another way than the model, with the difference.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("mistral-v0.2", "a space before the text of an answer"),
    ("smolvlm", "a space before the text of an answer"),
];

/// Returns the names of all chat templates.
fn templates() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let templates = paths.filter(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    let mut names: Vec<String> =
        templates.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Returns the test data of a template that has a format.
fn example(name: &str) -> Option<TemplateExample> {
    let templates = ToolFormat::ALL.iter().flat_map(|&format| (definition(format).examples)().templates);
    templates.into_iter().find(|template| template.name == name)
}

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
        options.tools = tools().into_iter().map(ExactJson::from).collect();
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
        tokenizer(&[&["<|end|>"], &definition(format).options.results[..], markers(format)].concat());
    let function = FunctionCall {
        name: "get_weather".to_owned(),
        arguments: json!({"city": "</tool_call>", "days": 2}).into(),
    };
    let answer = match example(name).and_then(|example| example.answer) {
        Some(write) => write(&function),
        None => write_calls(format, std::slice::from_ref(&function)),
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
    if let Some((marker, (reasoning, text))) = first.and_then(|first| Some((first, rest.split_once(first)?)))
    {
        tokens.extend(tokenizer.encode(reasoning, Specials::AsText).unwrap());
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
    for name in templates() {
        let exception =
            EXCEPTIONS.iter().find(|(template, _)| *template == name).map(|(_, difference)| *difference);
        let difference = exception.or(example(&name).and_then(|example| example.difference));
        assert_eq!(continues(&name), difference.is_none(), "{name}: {difference:?}");
    }
}

#[test]
fn no_message_of_a_conversation_is_omitted() {
    let ids = ["abcdefgh1", "abcdefgh2"].map(|id| Some(id.to_owned()));
    let call = |index: usize, city: &str| ToolCall {
        id: ids[index].clone(),
        function: FunctionCall { name: "get_weather".to_owned(), arguments: json!({"city": city}).into() },
    };
    let result = |index: usize, text: &str| Message {
        tool_call_id: ids[index].clone(),
        name: Some("get_weather".to_owned()),
        ..Message::new(Role::Tool, text)
    };
    let tool_calls = vec![call(0, "alpha"), call(1, "beta")];
    let history = [
        Message::new(Role::System, "gamma"),
        Message::new(Role::User, "delta"),
        Message { tool_calls, ..Message::new(Role::Assistant, "") },
        // Results may have another order than their calls.
        result(1, "epsilon"),
        result(0, "zeta"),
        Message::new(Role::Assistant, "eta"),
        Message::new(Role::System, "theta"),
        Message::new(Role::User, "iota"),
    ];
    let words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"];
    for name in templates() {
        let source = source(&name);
        let format = tool_format(&source).unwrap_or(ToolFormat::Hermes);
        let specials = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let specials = specials.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let template = ChatTemplate::new(&source, BTreeMap::from(specials)).unwrap();
        let messages = adapted(history.to_vec(), format, template.abilities());
        let options = RenderOptions::answer(Date { year: 2026, month: 11, day: 21 });
        let rendered = template.render(&messages, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let omitted: Vec<&str> = words.into_iter().filter(|word| !rendered.text().contains(word)).collect();
        assert!(omitted.is_empty(), "{name}: {omitted:?} of {}", rendered.text());
        if ["gpt-oss", "llama3.1", "llama3.2"].contains(&name.as_str()) {
            // These templates write one call of a message.
            let places = ["alpha", "zeta", "beta", "epsilon"].map(|word| rendered.text().find(word));
            assert!(places.is_sorted(), "{name}: {}", rendered.text());
        }
    }
}

#[test]
fn markers_in_text_and_arguments_are_no_tokens() {
    let tokenizer = tokenizer(&["<|end|>", "<tool_call>", "</tool_call>"]);
    let template = ChatTemplate::new(&source("smollm2"), BTreeMap::new()).unwrap();
    let function =
        FunctionCall { name: "stop".to_owned(), arguments: json!({"a": "<tool_call></tool_call>"}).into() };
    let message = Message {
        tool_calls: vec![ToolCall { id: None, function }],
        ..Message::new(Role::Assistant, "<tool_call>".to_owned())
    };
    let history = [Message::new(Role::User, "</tool_call>".to_owned()), message];
    let tokens = tokens(&tokenizer, &template, ToolFormat::Hermes, &history);
    let special: Vec<u32> = tokens.into_iter().filter(|&token| tokenizer.is_special(token)).collect();
    assert_eq!(special, ["<tool_call>", "</tool_call>"].map(|marker| tokenizer.token_id(marker).unwrap()));
}
