//! Messages with the calls of tools in them, and the ways in which a conversation is adapted to a template that refuses it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions, in newer templates.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    Tool,
}

/// One message, as templates see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// The speaker's or the tool's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which call a tool's result answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tools that the assistant calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// One call of a tool, as templates see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "function")]
pub struct ToolCall {
    /// What the tool's result names; some templates want nine letters and digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What is called.
    pub function: FunctionCall,
}

/// A function and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The function's name.
    pub name: String,
    /// The arguments by name: an object, where OpenAI's API has its text.
    pub arguments: Value,
}

impl Message {
    /// A message without a name.
    pub fn new(role: Role, content: String) -> Self {
        Self { role, content, name: None, tool_call_id: None, tool_calls: Vec::new() }
    }

    /// The message with each of its texts changed.
    pub fn map_text<'a>(&'a self, change: impl Fn(&'a str) -> Cow<'a, str>) -> Self {
        let own = |text: &'a Option<String>| text.as_deref().map(|text| change(text).into_owned());
        let call = |call: &'a ToolCall| ToolCall {
            id: own(&call.id),
            function: FunctionCall {
                name: change(&call.function.name).into_owned(),
                arguments: map_json(&call.function.arguments, &change),
            },
        };
        Self {
            role: self.role,
            content: change(&self.content).into_owned(),
            name: own(&self.name),
            tool_call_id: own(&self.tool_call_id),
            tool_calls: self.tool_calls.iter().map(call).collect(),
        }
    }
}

/// The value with each of its texts changed, names of fields among them. Values are as deep as `serde_json` reads them.
pub(super) fn map_json<'a>(value: &'a Value, change: &impl Fn(&'a str) -> Cow<'a, str>) -> Value {
    match value {
        Value::String(text) => Value::String(change(text).into_owned()),
        Value::Array(items) => items.iter().map(|item| map_json(item, change)).collect(),
        Value::Object(fields) => {
            let field =
                |(name, value): (&'a String, &'a Value)| (change(name).into_owned(), map_json(value, change));
            fields.iter().map(field).collect()
        }
        other => other.clone(),
    }
}

/// Developer messages as system messages.
pub(super) fn without_developer(messages: &[Message]) -> Vec<Message> {
    let mut renamed = messages.to_vec();
    for message in &mut renamed {
        if message.role == Role::Developer {
            message.role = Role::System;
        }
    }
    renamed
}

fn join(first: &str, second: &str) -> String {
    match (first.is_empty(), second.is_empty()) {
        (true, _) => second.to_owned(),
        (_, true) => first.to_owned(),
        _ => format!("{first}\n\n{second}"),
    }
}

/// Messages of one role in a row, joined.
pub(super) fn join_runs(messages: &[Message]) -> Vec<Message> {
    let mut joined: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match joined.last_mut() {
            Some(last) if last.role == message.role && message.role != Role::Tool => {
                last.content = join(&last.content, &message.content);
                last.tool_calls.extend(message.tool_calls.iter().cloned());
            }
            _ => joined.push(message.clone()),
        }
    }
    joined
}

/// System messages at the head of the first user message, which is made where there is none.
pub(super) fn fold_system(messages: &[Message]) -> Vec<Message> {
    let is_system = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
    let system = messages.iter().filter(is_system).fold(String::new(), |text, m| join(&text, &m.content));
    let mut rest: Vec<Message> = messages.iter().filter(|message| !is_system(message)).cloned().collect();
    if system.is_empty() {
        return rest;
    }
    match rest.iter_mut().find(|message| message.role == Role::User) {
        Some(first) => first.content = join(&system, &first.content),
        None => rest.insert(0, Message::new(Role::User, system)),
    }
    rest
}
