//! `GET /v1/responses/{id}/input_items`: the input of a stored response.

use axum::{
    Extension, Json,
    extract::{
        Path, Query,
        rejection::{PathRejection, QueryRejection},
    },
    http::StatusCode,
};
use narthex_gateway::request::{MediaKind, Message, Part, Role};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    item::{ReasoningPart, ResponseStatus},
    no_response, path,
    store::ResponseStore,
};
use crate::{app::App, error::ApiError};

/// Number of items in an answer, unless the request states another.
const DEFAULT_LIMIT: usize = 20;

/// Maximum number of items in an answer.
const MAX_LIMIT: usize = 100;

/// Copies of the input while an answer is written: the items and their JSON.
const COPIES: usize = 2;

/// Parameters of the request.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct PageQuery {
    /// Id of the item before the first one.
    after: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    order: ItemOrder,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ItemOrder {
    Asc,
    #[default]
    Desc,
}

/// Answer with some of the items.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InputItemList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    data: Vec<ListedItem>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ListedItem {
    id: String,
    #[serde(flatten)]
    content: ItemContent,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ItemContent {
    Message { role: &'static str, status: ResponseStatus, content: Vec<MessagePart> },
    Reasoning { summary: [Value; 0], content: [ReasoningPart; 1] },
    FunctionCall { call_id: String, name: String, arguments: String, status: ResponseStatus },
    FunctionCallOutput { call_id: String, output: CallOutput, status: ResponseStatus },
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum MessagePart {
    InputText { text: String },
    InputImage { image_url: String, detail: &'static str },
    InputAudio { input_audio: AudioPart },
    VideoUrl { video_url: VideoPart },
    OutputText { text: String, annotations: [Value; 0] },
}

#[derive(Debug, Serialize, JsonSchema)]
struct AudioPart {
    data: String,
    format: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct VideoPart {
    url: String,
}

/// Result of a call: a text, or a list of parts if it has media.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum CallOutput {
    Text(String),
    Parts(Vec<MessagePart>),
}

impl MessagePart {
    /// Returns the part of a message of this role.
    fn new(role: Role, part: &Part) -> Self {
        match part {
            Part::Text { text, .. } if role == Role::Assistant => {
                Self::OutputText { text: text.clone(), annotations: [] }
            }
            Part::Text { text, .. } => Self::InputText { text: text.clone() },
            Part::Remote(remote) if remote.kind == MediaKind::Video => Self::video(remote.url.clone()),
            Part::Remote(remote) => Self::InputImage { image_url: remote.url.clone(), detail: "auto" },
            Part::Media(media) => match media.kind() {
                MediaKind::Image => Self::InputImage { image_url: media.data_url(), detail: "auto" },
                MediaKind::Audio => {
                    let format =
                        media.media_type().map(|found| found.trim_start_matches("audio/").to_owned());
                    Self::InputAudio { input_audio: AudioPart { data: media.base64(), format } }
                }
                MediaKind::Video => Self::video(media.data_url()),
            },
        }
    }

    fn video(url: String) -> Self {
        Self::VideoUrl { video_url: VideoPart { url } }
    }

    /// Returns the parts of a message, of which there is at least one.
    fn all(message: &Message) -> Vec<Self> {
        let mut parts = message.content.parts().to_vec();
        if parts.is_empty() {
            parts.push(Part::text(""));
        }
        parts.iter().map(|part| Self::new(message.role, part)).collect()
    }
}

impl ItemContent {
    /// Returns the content of the items that make up a message.
    fn of(message: &Message) -> Vec<Self> {
        let status = ResponseStatus::Completed;
        let role = match message.role {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => {
                let call_id = message.tool_call_id.clone().unwrap_or_default();
                let output = match message.content.has_media() {
                    false => CallOutput::Text(message.content.text().into_owned()),
                    true => CallOutput::Parts(MessagePart::all(message)),
                };
                return vec![Self::FunctionCallOutput { call_id, output, status }];
            }
        };

        let mut items = Vec::new();
        if let Some(text) = message.reasoning_content.clone() {
            items.push(Self::Reasoning { summary: [], content: [ReasoningPart::ReasoningText { text }] });
        }
        if !message.content.is_empty() || (message.tool_calls.is_empty() && items.is_empty()) {
            items.push(Self::Message { role, status, content: MessagePart::all(message) });
        }
        items.extend(message.tool_calls.iter().map(|call| Self::FunctionCall {
            call_id: call.id.clone().unwrap_or_default(),
            name: call.function.name.clone(),
            arguments: call.function.arguments.to_string(),
            status,
        }));
        items
    }

    /// Returns the start of the item's id.
    fn prefix(&self) -> &'static str {
        match self {
            Self::Message { .. } => "msg",
            Self::Reasoning { .. } => "rs",
            Self::FunctionCall { .. } => "fc",
            Self::FunctionCallOutput { .. } => "fco",
        }
    }
}

/// Returns the items of messages. Their ids follow from that of the response, so that a client can ask for more.
fn items(response: &str, messages: &[Message]) -> Vec<ListedItem> {
    let suffix = response.trim_start_matches("resp_");
    let contents = messages.iter().flat_map(ItemContent::of).enumerate();
    contents
        .map(|(index, content)| ListedItem { id: format!("{}_{suffix}_{index}", content.prefix()), content })
        .collect()
}

impl PageQuery {
    /// Returns the requested ones of these items.
    fn page(&self, mut items: Vec<ListedItem>) -> Result<InputItemList, ApiError> {
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            let message = format!("limit: expected a number from 1 to {MAX_LIMIT}, found {limit}");
            return Err(ApiError::bad_request("limit", message));
        }

        if self.order == ItemOrder::Desc {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let position = items.iter().position(|item| item.id == *after).ok_or_else(|| {
                ApiError::bad_request("after", format!("after: the response has no input item {after:?}"))
            })?;
            items.drain(..=position);
        }
        let has_more = items.len() > limit;
        items.truncate(limit);

        let first_id = items.first().map(|item| item.id.clone());
        let last_id = items.last().map(|item| item.id.clone());
        Ok(InputItemList { object: "list", data: items, has_more, first_id, last_id })
    }
}

/// Handles a request.
pub(crate) async fn list(
    app: App,
    Extension(store): Extension<ResponseStore>,
    query: Result<Query<PageQuery>, QueryRejection>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<InputItemList>, ApiError> {
    let id = path(id)?;
    let Query(query) =
        query.map_err(|rejection| ApiError::plain(StatusCode::BAD_REQUEST, rejection.body_text()))?;
    let input = store.input(app.meter.caller.key_hash(), &id).ok_or_else(|| no_response(&id))?;
    app.answer.reserve(input.bytes().saturating_mul(COPIES)).await?;
    app.shared.jobs.run(move || query.page(items(&id, input.messages()))).await.map(Json)
}

#[cfg(test)]
mod tests {
    use narthex_gateway::request::{Content, FunctionCall, Media, ToolCall};
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_become_the_items_that_they_were() {
        let function = FunctionCall { name: "f".to_owned(), arguments: json!({"a": 1}).into() };
        let answer = Message {
            reasoning_content: Some("r".to_owned()),
            tool_calls: vec![ToolCall { id: Some("c1".to_owned()), function }],
            ..Message::new(Role::Assistant, "b".to_owned())
        };
        let result =
            Message { tool_call_id: Some("c1".to_owned()), ..Message::new(Role::Tool, "7".to_owned()) };
        let messages = [Message::new(Role::User, "a".to_owned()), answer, result];
        assert_eq!(
            json!(items("resp_1", &messages)),
            json!([
                {"id": "msg_1_0", "type": "message", "role": "user", "status": "completed",
                    "content": [{"type": "input_text", "text": "a"}]},
                {"id": "rs_1_1", "type": "reasoning", "summary": [],
                    "content": [{"type": "reasoning_text", "text": "r"}]},
                {"id": "msg_1_2", "type": "message", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": "b", "annotations": []}]},
                {"id": "fc_1_3", "type": "function_call", "call_id": "c1", "name": "f",
                    "arguments": "{\"a\":1}", "status": "completed"},
                {"id": "fco_1_4", "type": "function_call_output", "call_id": "c1", "output": "7",
                    "status": "completed"},
            ])
        );
    }

    #[test]
    fn media_are_listed_with_their_bytes() {
        let image = Part::Media(Media::new(MediaKind::Image, Some("image/png".to_owned()), vec![137; 3]));
        let sound = Part::Media(Media::new(MediaKind::Audio, Some("audio/wav".to_owned()), vec![1; 3]));
        let video = Part::Media(Media::new(MediaKind::Video, Some("image/gif".to_owned()), vec![1; 3]));
        let content: Content = [Part::text("a"), image, sound, video].into_iter().collect();
        let messages = [Message::new(Role::User, content.clone()), Message::new(Role::Tool, content)];
        let parts = json!([
            {"type": "input_text", "text": "a"},
            {"type": "input_image", "image_url": "data:image/png;base64,iYmJ", "detail": "auto"},
            {"type": "input_audio", "input_audio": {"data": "AQEB", "format": "wav"}},
            {"type": "video_url", "video_url": {"url": "data:image/gif;base64,AQEB"}},
        ]);
        let listed = json!(items("resp_1", &messages));
        assert_eq!((&listed[0]["content"], &listed[1]["output"]), (&parts, &parts));
    }

    #[test]
    fn pages_follow_each_other() {
        let messages: Vec<_> = (0..5).map(|text| Message::new(Role::User, text.to_string())).collect();
        let page = |after: Option<&str>, limit, order| {
            let query = PageQuery { after: after.map(str::to_owned), limit, order };
            query.page(items("resp_x", &messages)).map(|page| json!(page))
        };
        let first = page(None, Some(2), ItemOrder::Asc).unwrap();
        assert_eq!((&first["first_id"], &first["last_id"]), (&json!("msg_x_0"), &json!("msg_x_1")));
        assert_eq!(first["has_more"], true);
        let rest = page(Some("msg_x_1"), None, ItemOrder::Asc).unwrap();
        assert_eq!((rest["data"].as_array().unwrap().len(), &rest["has_more"]), (3, &json!(false)));
        assert_eq!(page(None, None, ItemOrder::Desc).unwrap()["first_id"], "msg_x_4");
        let param = |page: Result<Value, ApiError>| page.unwrap_err().body()["error"]["param"].clone();
        assert_eq!(param(page(None, Some(0), ItemOrder::Asc)), "limit");
        assert_eq!(param(page(None, Some(101), ItemOrder::Asc)), "limit");
        assert_eq!(param(page(Some("msg_y_0"), None, ItemOrder::Asc)), "after");
    }
}
