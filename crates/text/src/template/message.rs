//! Messages with tool calls, and adaptations of a conversation to a template that refuses it.

use std::ops::Range;

use minijinja::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::origin::{self, Escaper};

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
    /// Declarations of tools as JSON, for templates that read them from the system message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<String>,
    /// Byte ranges of [`Self::content`] that count as written by the template, in order. [`Self::push_marker`] adds
    /// them; they never come from a client.
    #[serde(skip)]
    pub markers: Vec<Range<usize>>,
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
            tools: None,
            markers: Vec::new(),
        }
    }

    /// Appends a marker, such as that of a call, to the text. It counts as written by the template.
    pub fn push_marker(&mut self, marker: &str) {
        let start = self.content.len();
        self.content.push_str(marker);
        self.markers.push(start..self.content.len());
    }

    /// Appends the text of a message after an empty line.
    pub fn append_text(&mut self, other: &Self) {
        if !self.content.is_empty() && !other.content.is_empty() {
            self.content.push_str("\n\n");
        }
        let start = self.content.len();
        self.content.push_str(&other.content);
        self.markers.extend(other.markers.iter().map(|marker| start + marker.start..start + marker.end));
    }

    /// Returns the text in which markers count as the template's and the rest as the conversation's.
    fn marked_content(&self, escaper: &Escaper) -> Result<String, Error> {
        let mut marked = String::new();
        let mut end = 0;
        for marker in &self.markers {
            // Ranges that do not fit the text have no effect.
            let parts = self.content.get(end..marker.start).zip(self.content.get(marker.clone()));
            let Some((before, text)) = parts else { continue };
            marked.push_str(&escaper.escape(before)?);
            marked.push_str(&origin::mark(text));
            end = marker.end;
        }
        marked.push_str(&escaper.escape(&self.content[end..])?);
        Ok(marked)
    }

    /// Returns the message in the form that a template reads. Its texts are marked as the conversation's; its role
    /// counts as the template's, since control tokens such as `<|user|>` are built from it.
    pub(super) fn template_value(&self, escaper: &Escaper) -> Result<Value, Error> {
        let mut value = serde_json::to_value(self)
            .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
        if !self.markers.is_empty() {
            value["content"] = Value::Null;
        }
        let mut value = escaped_json(&value, escaper)?;
        if let Some(role) = value["role"].as_str().map(origin::mark) {
            value["role"] = Value::String(role);
        }
        if !self.markers.is_empty() {
            value["content"] = Value::String(self.marked_content(escaper)?);
        }
        Ok(value)
    }
}

/// Returns the value with each of its strings and keys escaped. The recursion is limited by the depth that `serde_json`
/// reads.
pub(super) fn escaped_json(value: &Value, escaper: &Escaper) -> Result<Value, Error> {
    Ok(match value {
        Value::String(text) => Value::String(escaper.escape(text)?.into_owned()),
        Value::Array(items) => {
            items.iter().map(|item| escaped_json(item, escaper)).collect::<Result<_, _>>()?
        }
        Value::Object(fields) => {
            let escaped = fields.iter().map(|(name, value)| {
                Ok::<_, Error>((escaper.escape(name)?.into_owned(), escaped_json(value, escaper)?))
            });
            Value::Object(escaped.collect::<Result<_, _>>()?)
        }
        other => other.clone(),
    })
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

/// Returns the messages with runs of one role joined.
pub(super) fn join_runs(messages: &[Message]) -> Vec<Message> {
    let mut joined: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match joined.last_mut() {
            Some(last) if last.role == message.role && message.role != Role::Tool => {
                last.append_text(message);
                last.tool_calls.extend(message.tool_calls.iter().cloned());
            }
            _ => joined.push(message.clone()),
        }
    }
    joined
}

/// Returns the messages with the leading system messages at the head of the first user message, which is created if missing.
/// Later system messages become user messages in their place, so that a new one does not change the beginning of the
/// prompt.
pub(super) fn fold_system(messages: &[Message]) -> Vec<Message> {
    let is_system = |message: &Message| matches!(message.role, Role::System | Role::Developer);
    let leading = messages.iter().take_while(|message| is_system(message)).count();
    let (leading, rest) = messages.split_at(leading);
    let mut system = Message::new(Role::User, String::new());
    leading.iter().for_each(|message| system.append_text(message));
    let mut rest = rest.to_vec();
    if !system.content.is_empty() {
        match rest.iter_mut().find(|message| message.role == Role::User) {
            Some(first) => {
                system.append_text(first);
                (first.content, first.markers) = (system.content, system.markers);
            }
            None => rest.insert(0, system),
        }
    }
    rest.iter_mut().filter(|message| is_system(message)).for_each(|message| message.role = Role::User);
    rest
}
