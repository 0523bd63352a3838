//! Messages with tool calls, and adaptations of a conversation to a template that refuses it.

use minijinja::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    content::{Content, ContentItem, Origin, TextSpan},
    large_integer,
    origin::{self, Escaper},
};
use crate::exact_json::{ExactContent, ExactJson, ExactPart};

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
    /// Texts and media.
    pub content: Content,
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
    pub arguments: ExactJson,
}

impl Message {
    /// Creates a message that has only content.
    pub fn new(role: Role, content: impl Into<Content>) -> Self {
        Self {
            role,
            content: content.into(),
            name: None,
            tool_call_id: None,
            reasoning_content: None,
            tool_calls: Vec::new(),
            tools: None,
        }
    }

    /// Appends the content of a message after an empty line.
    pub fn append_content(&mut self, other: &Self) {
        self.content.append("\n\n", other.content.clone());
    }

    /// Returns the message in the form that a template reads. Its texts are marked as the conversation's; its role
    /// counts as the template's, since control tokens such as `<|user|>` are built from it.
    pub(super) fn template_value(&self, form: ContentForm, escaper: &Escaper) -> Result<Value, Error> {
        let mut value = serde_json::to_value(self)
            .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
        value["content"] = Value::Null;
        let calls_alone = !self.tool_calls.is_empty() && self.content.is_empty();
        if let Some(reasoning) = self.reasoning_content.as_ref().filter(|_| calls_alone) {
            // The template of gpt-oss reads reasoning before a call by this name, and refuses it beside a text.
            value["thinking"] = reasoning.as_str().into();
        }
        let mut value = escaped_json(ExactPart::plain(&value), escaper)?;
        for (index, call) in self.tool_calls.iter().enumerate() {
            value["tool_calls"][index]["function"]["arguments"] =
                escaped_json(call.function.arguments.tree().root(), escaper)?;
        }
        if let Some(role) = value["role"].as_str().map(origin::mark) {
            value["role"] = Value::String(role);
        }
        let has_media = self.content.has_media();
        value["content"] = match form {
            ContentForm::Text if !has_media => escaped_text(self.content.texts(), escaper)?.into(),
            ContentForm::Text | ContentForm::Parts => {
                let mut items = self.content.items();
                if items.is_empty() {
                    // Templates read the type of the first part.
                    items.push(ContentItem::Text(Vec::new()));
                }
                let items = items.into_iter().map(|item| template_item(item, escaper));
                Value::Array(items.collect::<Result<_, _>>()?)
            }
        };
        Ok(value)
    }
}

/// Form in which a template reads content without media. It reads other content as parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentForm {
    /// A string.
    Text,
    /// A list of parts.
    Parts,
}

/// Returns texts as one string, in which markers count as the template's and the rest as the conversation's.
fn escaped_text<'a>(
    texts: impl IntoIterator<Item = TextSpan<'a>>,
    escaper: &Escaper,
) -> Result<String, Error> {
    let mut escaped = String::new();
    for TextSpan { text, origin } in texts {
        match origin {
            Origin::Conversation => escaped.push_str(&escaper.escape(text)?),
            Origin::Template => escaped.push_str(&origin::mark(text)),
        }
    }
    Ok(escaped)
}

/// Returns a part as an object with the keys that transformers' processors pass to templates.
fn template_item(item: ContentItem<'_>, escaper: &Escaper) -> Result<Value, Error> {
    Ok(match item {
        ContentItem::Text(texts) => {
            json!({"type": origin::mark("text"), "text": escaped_text(texts, escaper)?})
        }
        ContentItem::Media(media) => json!({"type": origin::mark(media.kind().as_str())}),
    })
}

/// Returns the value with each of its strings and keys escaped. The recursion is limited by the depth that `serde_json`
/// reads.
pub(super) fn escaped_json(value: ExactPart<'_>, escaper: &Escaper) -> Result<Value, Error> {
    Ok(match value.content() {
        ExactContent::Integer(digits) => large_integer::marked(digits),
        ExactContent::Text(text) => Value::String(escaper.escape(text)?.into_owned()),
        ExactContent::List(items) => {
            items.into_iter().map(|item| escaped_json(item, escaper)).collect::<Result<_, _>>()?
        }
        ExactContent::Object(fields) => {
            let escaped = fields.into_iter().map(|(name, value)| {
                Ok::<_, Error>((escaper.escape(name)?.into_owned(), escaped_json(value, escaper)?))
            });
            Value::Object(escaped.collect::<Result<_, _>>()?)
        }
        ExactContent::Other(other) => other.clone(),
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
                last.append_content(message);
                last.tool_calls.extend(message.tool_calls.iter().cloned());
            }
            _ => joined.push(message.clone()),
        }
    }
    joined
}

/// Divides messages with several calls into one for each, and puts the result of each call after it.
pub(super) fn with_single_calls(messages: Vec<Message>) -> Vec<Message> {
    let mut divided = Vec::with_capacity(messages.len());
    let mut rest = messages.into_iter().peekable();
    while let Some(mut message) = rest.next() {
        if message.tool_calls.len() < 2 {
            divided.push(message);
            continue;
        }

        let mut results: Vec<Message> =
            std::iter::from_fn(|| rest.next_if(|next| next.role == Role::Tool)).collect();
        for call in std::mem::take(&mut message.tool_calls) {
            let result = results.iter().position(|result| result.tool_call_id == call.id);
            let first = std::mem::replace(&mut message, Message::new(Role::Assistant, ""));
            divided.push(Message { tool_calls: vec![call], ..first });
            divided.extend(result.map(|at| results.remove(at)));
        }
        divided.append(&mut results);
    }
    divided
}

fn is_system(message: &Message) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

/// Returns true if a rendering has the text of every system message. Templates write them in their order, without white space
/// around them.
pub(super) fn has_system_texts(messages: &[Message], rendered: &str) -> bool {
    let mut rest = rendered;
    let systems = messages.iter().filter(|message| is_system(message));
    systems.flat_map(|message| message.content.texts()).all(|span| {
        let text = span.text.trim();
        let found = rest.find(text);
        rest = found.map_or(rest, |at| &rest[at + text.len()..]);
        found.is_some()
    })
}

/// Returns the messages with a word in place of the text of each system message. A template may change other texts.
pub(super) fn with_probes(messages: &[Message]) -> Vec<Message> {
    let mut probes = messages.to_vec();
    for (index, message) in probes.iter_mut().enumerate().filter(|(_, message)| is_system(message)) {
        message.content = format!("probe{index}system").into();
    }
    probes
}

/// Returns the messages with the leading system messages as one, and with later ones as user messages in their place, so that a
/// new one does not change the beginning of the prompt.
pub(super) fn lead_with_system(messages: &[Message]) -> Vec<Message> {
    let (system, mut rest) = without_system(messages, Role::System);
    if !system.content.is_empty() {
        rest.insert(0, system);
    }
    rest
}

/// Returns the messages with the leading system messages at the head of the first user message, which is created if missing, and
/// with later ones as user messages in their place.
pub(super) fn fold_system(messages: &[Message]) -> Vec<Message> {
    let (mut system, mut rest) = without_system(messages, Role::User);
    if !system.content.is_empty() {
        match rest.iter_mut().find(|message| message.role == Role::User) {
            Some(first) => {
                system.append_content(first);
                first.content = system.content;
            }
            None => rest.insert(0, system),
        }
    }
    rest
}

/// Returns the leading system messages as one message of a role, and the other messages, of which those of the system are from
/// the user.
fn without_system(messages: &[Message], role: Role) -> (Message, Vec<Message>) {
    let leading = messages.iter().take_while(|message| is_system(message)).count();
    let (leading, rest) = messages.split_at(leading);
    let mut system = Message::new(role, Content::default());
    leading.iter().for_each(|message| system.append_content(message));
    let mut rest = rest.to_vec();
    rest.iter_mut().filter(|message| is_system(message)).for_each(|message| message.role = Role::User);
    (system, rest)
}
