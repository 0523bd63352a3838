//! Messages with tool calls, and adaptations of a conversation to a template that refuses it.

use std::borrow::Cow;

use minijinja::ErrorKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::origin;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions, in newer templates.
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    Tool,
}

/// A message in the form that templates read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Author.
    pub role: Role,
    /// Text.
    pub content: String,
    /// Name of the author or tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Id of the call that a tool's result answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Reasoning before the assistant's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tool calls of the assistant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A tool call in the form that templates read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "function")]
pub struct ToolCall {
    /// Id that the tool's result repeats. Some templates require nine letters and digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Function to call.
    pub function: FunctionCall,
}

/// A function and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// Name.
    pub name: String,
    /// Arguments by name, as an object. OpenAI's API has them as a JSON string.
    pub arguments: Value,
}

impl Message {
    /// Creates a message that has only a text.
    pub fn new(role: Role, content: String) -> Self {
        Self {
            role,
            content,
            name: None,
            tool_call_id: None,
            reasoning_content: None,
            tool_calls: Vec::new(),
        }
    }

    /// Returns the message in the form that a template reads. Its texts are marked as the conversation's; its role
    /// counts as the template's, since control tokens such as `<|user|>` are built from it.
    pub(super) fn template_value(&self) -> Result<Value, minijinja::Error> {
        let failed =
            |error: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string());
        let mut value = map_json(&serde_json::to_value(self).map_err(failed)?, &origin::escape);
        if let Some(role) = value["role"].as_str().map(origin::mark) {
            value["role"] = Value::String(role);
        }
        Ok(value)
    }
}

/// Returns the value with `change` applied to each of its strings and keys. The recursion is limited by the depth that
/// `serde_json` reads.
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

/// Returns the messages with developer messages as system messages.
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

/// Returns the messages with runs of one role joined.
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

/// Returns the messages with system messages at the head of the first user message, which is created if missing.
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
