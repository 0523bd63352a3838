//! Items of a conversation, and the messages that they make up. Reasoning, text and calls of one answer are items of
//! their own in this protocol; templates expect them in one message, as in the other protocols.

use std::collections::{HashMap, HashSet};

use narthex_gateway::request::{Content, ExactJson, FunctionCall, Message, Role, ToolCall};

use crate::error::ApiError;

/// An item of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum HistoryItem {
    Message(Message),
    /// Reasoning of the model.
    Reasoning(String),
    /// A call by the model.
    Call(ToolCall),
}

/// An item of a request.
#[derive(Debug)]
pub(super) enum InputItem {
    Given(HistoryItem),
    /// An item of a stored response, by its id.
    Reference(String),
}

impl HistoryItem {
    /// Creates a call with these arguments.
    pub(super) fn call(id: Option<String>, name: String, arguments: ExactJson) -> Self {
        Self::Call(ToolCall { id, function: FunctionCall { name, arguments } })
    }

    /// Creates the result of a call.
    pub(super) fn result(id: Option<String>, content: Content) -> Self {
        Self::Message(Message { tool_call_id: id, ..Message::new(Role::Tool, content) })
    }

    /// Returns the item as a message; `None` for reasoning without text.
    fn into_message(self) -> Option<Message> {
        let answer = Message::new(Role::Assistant, Content::default());
        match self {
            Self::Message(message) => Some(message),
            Self::Reasoning(text) if text.is_empty() => None,
            Self::Reasoning(text) => Some(Message { reasoning_content: Some(text), ..answer }),
            Self::Call(call) => Some(Message { tool_calls: vec![call], ..answer }),
        }
    }
}

/// Returns the messages of items. Adjacent items of the model become one message.
pub(super) fn to_messages(items: impl IntoIterator<Item = HistoryItem>) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    for next in items.into_iter().filter_map(HistoryItem::into_message) {
        match messages.last_mut() {
            Some(last) if last.role == Role::Assistant && next.role == Role::Assistant => join(last, next),
            _ => messages.push(next),
        }
    }
    messages
}

fn join(message: &mut Message, next: Message) {
    message.content.append("\n", next.content);
    if let Some(text) = next.reasoning_content {
        append(message.reasoning_content.get_or_insert_default(), &text);
    }
    message.tool_calls.extend(next.tool_calls);
}

/// Appends a text on a line of its own.
fn append(text: &mut String, next: &str) {
    if !text.is_empty() && !next.is_empty() {
        text.push('\n');
    }
    text.push_str(next);
}

/// Replaces references by the items that `find` returns for their ids. An id may occur once, so that a short request
/// cannot repeat a long item.
pub(super) fn resolve(
    items: Vec<InputItem>,
    find: impl FnOnce(&HashSet<String>) -> HashMap<String, HistoryItem>,
) -> Result<Vec<HistoryItem>, ApiError> {
    let referenced = items.iter().filter_map(|item| match item {
        InputItem::Reference(id) => Some(id.clone()),
        InputItem::Given(_) => None,
    });
    let ids: HashSet<String> = referenced.collect();
    let mut found = if ids.is_empty() { HashMap::new() } else { find(&ids) };
    let resolved = items.into_iter().enumerate().map(|(index, item)| match item {
        InputItem::Given(item) => Ok(item),
        InputItem::Reference(id) => found.remove(&id).ok_or_else(|| not_stored(index, &id)),
    });
    resolved.collect()
}

fn not_stored(index: usize, id: &str) -> ApiError {
    let path = format!("input[{index}].id");
    let message = format!(
        "{path}: no stored response has the item {id:?}, or it is referenced twice; send the item itself, or send \
         store: true with the request whose answer is referenced"
    );
    ApiError::bad_request(path, message).with_code("item_not_found")
}

/// Returns the name under which the model knows a tool: with its namespace, if it has one.
pub(super) fn full_name(namespace: Option<&str>, name: String) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}.{name}"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str) -> HistoryItem {
        HistoryItem::call(Some(id.to_owned()), "f".to_owned(), json!({}).into())
    }

    fn message(role: Role, text: &str) -> HistoryItem {
        HistoryItem::Message(Message::new(role, text.to_owned()))
    }

    #[test]
    fn items_of_one_answer_are_one_message() {
        let reasoning = |text: &str| HistoryItem::Reasoning(text.to_owned());
        let result = |id: &str| {
            let result = Message::new(Role::Tool, "12".to_owned());
            HistoryItem::Message(Message { tool_call_id: Some(id.to_owned()), ..result })
        };
        let messages = to_messages([
            message(Role::User, "Weather?"),
            reasoning("Two cities."),
            message(Role::Assistant, "I look."),
            call("a"),
            call("b"),
            result("a"),
            result("b"),
            reasoning(""),
            message(Role::Assistant, "Warm."),
            message(Role::User, "Thanks"),
            reasoning(""),
            message(Role::User, "Bye"),
        ]);
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        let (user, tool) = (Role::User, Role::Tool);
        assert_eq!(roles, [user, Role::Assistant, tool, tool, Role::Assistant, user, user]);
        let answer = &messages[1];
        let ids: Vec<&str> = answer.tool_calls.iter().filter_map(|call| call.id.as_deref()).collect();
        assert_eq!(
            (&*answer.content.text(), answer.reasoning_content.as_deref(), ids.as_slice()),
            ("I look.", Some("Two cities."), ["a", "b"].as_slice())
        );
        assert_eq!((&*messages[4].content.text(), &messages[4].reasoning_content), ("Warm.", &None));
    }

    #[test]
    fn references_are_replaced_once() {
        let find = |ids: &HashSet<String>| {
            let known = ids.iter().filter(|id| *id == "msg_1");
            known.map(|id| (id.clone(), message(Role::Assistant, "Warm."))).collect()
        };
        let input = |ids: &[&str]| {
            let references = ids.iter().map(|id| InputItem::Reference((*id).to_owned()));
            references.chain([InputItem::Given(call("a"))]).collect::<Vec<_>>()
        };
        let resolved = resolve(input(&["msg_1"]), find).unwrap();
        assert_eq!(resolved, [message(Role::Assistant, "Warm."), call("a")]);
        for ids in [["msg_1", "msg_2"], ["msg_1", "msg_1"]] {
            let error = resolve(input(&ids), find).unwrap_err().body();
            assert_eq!(error["error"]["param"], "input[1].id", "{error}");
            assert!(error["error"]["message"].as_str().unwrap().contains("store: true"), "{error}");
        }
    }
}
