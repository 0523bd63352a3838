//! `POST /api/chat`.

use axum::response::Response;
use narthex_gateway::request::{
    ChatRequest, Content, FunctionCall, HistoryOverflow, Message, Part, ReadingSettings, ReasoningSettings,
    Role, ToolCall, omission_note,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    change_memory,
    lines::{AnswerLines, ChatContent},
    options::{AnswerFields, Retention, Think},
    retain,
};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        body::{Body, FromBody},
        conversation::{self, Conversation},
        fields::BodyFields,
        hints,
        ignored::IgnoredParameters,
        media::Base64File,
        shared_fields::SharedFields,
        tools::ToolOptions,
    },
};

/// Body of the request, without the fields that both endpoints share.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct OllamaBody {
    model: String,
    messages: Option<Vec<OllamaMessage>>,
    /// Omit the oldest turns of a conversation that is too long; true by default.
    truncate: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct OllamaMessage {
    #[schemars(with = "String")]
    role: Role,
    content: Option<String>,
    thinking: Option<String>,
    tool_name: Option<String>,
    /// Id of the call that this result answers.
    tool_call_id: Option<String>,
    tool_calls: Option<Vec<OllamaCall>>,
    /// Pictures and sounds in base64, which stand before the text.
    #[schemars(with = "Option<Vec<String>>")]
    images: Option<Vec<Base64File>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct OllamaCall {
    id: Option<String>,
    #[schemars(with = "Map<String, Value>")]
    function: FunctionCall,
}

/// A body that was read and checked.
pub(crate) struct ParsedOllamaChat {
    conversation: Conversation,
    retention: Retention,
}

impl FromBody for ParsedOllamaChat {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body: OllamaBody = fields.read()?;
        let shared = SharedFields::read(fields)?;
        let tools: ToolOptions = fields.read()?;
        let mut answer_fields: AnswerFields = fields.read()?;
        hints::ignore(fields, &[], ignored)?;

        let tools = tools.settings(ignored)?;
        let messages = body.messages.unwrap_or_default();
        let retention = answer_fields.take_retention(ignored);
        let think = answer_fields.think;
        let is_streamed = answer_fields.is_streamed();
        let options = answer_fields.options(shared.sampling, shared.grammar, ignored)?;
        let messages = messages.into_iter().enumerate();
        let messages =
            messages.map(|(index, message)| message.into_message(index)).collect::<Result<_, _>>()?;
        let reasoning_parameters = Think::name(think).into_iter().chain(shared.reasoning.given()).collect();
        let reasoning = think.map_or_else(ReasoningSettings::default, Think::settings);
        let reasoning = shared.reasoning.settings_after(reasoning);
        let overflow = match body.truncate {
            Some(false) => HistoryOverflow::Refuse,
            Some(true) | None => HistoryOverflow::OmitOldest,
        };
        let reading = ReadingSettings::default();
        let mut request = ChatRequest { messages, tools, reasoning, overflow, reading, options };
        conversation::continue_last(&mut request);
        let conversation = Conversation { model: body.model, request, is_streamed, reasoning_parameters };
        Ok(Self { conversation, retention })
    }
}

impl OllamaMessage {
    fn into_message(self, index: usize) -> Result<Message, ApiError> {
        let path = format!("messages[{index}].images");
        let mut content = Content::default();
        for (number, image) in self.images.into_iter().flatten().enumerate() {
            content.push(match image.into_media(&format!("{path}[{number}]")) {
                Ok(image) => Part::Media(image),
                Err(_) if self.role == Role::Tool => Part::text(omission_note("image")),
                Err(error) => return Err(error),
            });
        }
        content.extend(self.content.map(Part::text));
        let calls = self.tool_calls.unwrap_or_default().into_iter();
        let tool_calls = calls.map(|call| ToolCall { id: call.id, function: call.function }).collect();
        Ok(Message {
            name: self.tool_name,
            tool_call_id: self.tool_call_id,
            reasoning_content: self.thinking,
            tool_calls,
            ..Message::new(self.role, content)
        })
    }
}

/// Handles a request. Without messages it loads or unloads the model.
pub(crate) async fn create(app: App, body: Body<ParsedOllamaChat>) -> Result<Response, ApiError> {
    let Body { request: ParsedOllamaChat { conversation, retention }, mut ignored, reservation } = body;
    let model = conversation.model.clone();
    let form = AnswerLines::<ChatContent>::new(model.clone());
    if conversation.request.messages.is_empty() {
        let retention = retention.without_work(&app, &mut ignored);
        return Ok(ignored.name_in(change_memory(&app, form, retention).await?));
    }

    let retention = retention.permitted_for(&app, &mut ignored);
    let body = Body { request: conversation, ignored, reservation };
    let response = conversation::answer(&app, body, form).await?;
    retain(&app, &model, retention).await?;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::body::read_checked;

    #[test]
    fn calls_and_their_results_keep_their_ids() {
        let call = json!({"id": "call_1", "function": {"name": "f", "arguments": {}}});
        let body = json!({"model": "m", "messages": [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "7", "tool_name": "f", "tool_call_id": "call_1"},
        ]});
        let read = read_checked::<ParsedOllamaChat>(body.to_string().as_bytes()).ok().unwrap();
        let messages = read.conversation.request.messages;
        assert_eq!(messages[0].tool_calls[0].id.as_deref(), Some("call_1"));
        assert_eq!(messages[1].tool_call_id.as_deref(), Some("call_1"));
    }

    #[test]
    fn a_body_without_messages_is_about_the_memory() {
        for body in [json!({"model": "m"}), json!({"model": "m", "messages": null, "truncate": null})] {
            let read = read_checked::<ParsedOllamaChat>(body.to_string().as_bytes());
            let read = read.ok().unwrap();
            let found = (read.conversation.request.messages.len(), read.retention);
            assert_eq!(found, (0, Retention::Settings), "{body}");
        }
    }

    fn content(role: &str, text: Value, images: &[&str]) -> Result<Content, ApiError> {
        let message = json!({"role": role, "content": text, "images": images});
        let body = json!({"model": "m", "messages": [message]});
        let read = read_checked::<ParsedOllamaChat>(body.to_string().as_bytes())?;
        Ok(read.conversation.request.messages[0].content.clone())
    }

    #[test]
    fn images_stand_before_the_text() {
        let read = content("user", json!("What is it?"), &["iVBORw==", "R0lG"]).unwrap();
        let [Part::Media(first), Part::Media(second), Part::Text { text, .. }] = read.parts() else {
            panic!("{read:?}")
        };
        assert_eq!((first.bytes().len(), second.bytes(), text.as_str()), (4, &b"GIF"[..], "What is it?"));
        let error = content("user", Value::Null, &["iVBORw==", "?"]).unwrap_err().body();
        assert_eq!(error["error"]["param"], "messages[0].images[1]", "{error}");
    }

    #[test]
    fn images_in_the_results_of_tools_may_be_broken() {
        let read = content("tool", json!("A cat."), &["?"]).unwrap();
        assert_eq!(read, "[image omitted: this model reads text]\nA cat.");
        assert_eq!(content("tool", Value::Null, &["R0lG"]).unwrap().media().count(), 1);
    }
}
