//! Messages of a conversation in OpenAI's JSON, including tool calls and their results.

use narthex_gateway::request::{
    Content, ExactJson, FunctionCall, Media, MediaKind, Message, Part, Role, ToolCall, omission_note,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::ApiError,
    protocol::{
        conversation::stable_text,
        custom_tools,
        media::{FileUrl, InputMedia, MediaUrl},
        outline,
        text_or_list::{ListElement, TextOrList},
    },
};

/// A message.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WireMessage {
    role: WireRole,
    #[serde(default)]
    content: Option<WireContent>,
    refusal: Option<String>,
    reasoning_content: Option<String>,
    /// The name of `reasoning_content` in other servers.
    reasoning: Option<String>,
    name: Option<String>,
    tool_call_id: Option<String>,
    tool_calls: Option<Vec<WireToolCall>>,
    function_call: Option<WireFunctionCall>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum WireRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
    /// Result of a tool in the API's older form.
    Function,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct WireToolCall {
    id: Option<String>,
    function: Option<WireFunctionCall>,
    custom: Option<WireCustomCall>,
}

/// Call of a custom tool.
#[derive(Debug, Deserialize, JsonSchema)]
struct WireCustomCall {
    name: String,
    #[serde(default)]
    input: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct WireFunctionCall {
    name: String,
    /// JSON text, or an object as some clients send it.
    #[serde(default)]
    #[schemars(with = "Value")]
    arguments: ExactJson,
}

pub(crate) type WireContent = TextOrList<WirePart>;

/// Part of a message: a text, a picture, a sound or a video.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WirePart {
    // Parts of ignored items may have no type.
    #[serde(default)]
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
    /// Reasoning, as in Anthropic's API.
    thinking: Option<String>,
    /// Picture as a data URL.
    image_url: Option<MediaUrl>,
    /// Video as a data URL, as in vLLM and OpenRouter.
    video_url: Option<MediaUrl>,
    /// Sound in base64.
    input_audio: Option<InputMedia>,
    /// Video in base64, as in llama.cpp's server.
    input_video: Option<InputMedia>,
    /// File, which must be a picture.
    file: Option<WireFile>,
    /// Data URL of a file in the Responses API, which must be a picture.
    #[schemars(with = "Option<String>")]
    file_data: Option<FileUrl>,
}

/// File of a part.
#[derive(Debug, Deserialize, JsonSchema)]
struct WireFile {
    /// Data URL.
    #[schemars(with = "Option<String>")]
    file_data: Option<FileUrl>,
}

/// Types of the parts of an assistant's message that are reasoning.
const REASONING: &[&str] = &["thinking", "redacted_thinking", "reasoning"];

impl ListElement for WirePart {
    const EXPECTED: &'static str = r#"a string or a list of parts such as {"type": "text", "text": …}"#;
}

impl WireContent {
    /// Returns the content of a message of this role. `path` is the path of the content for errors.
    pub(crate) fn into_content(self, role: Role, path: &str) -> Result<Content, ApiError> {
        match self {
            Self::Text(text) => Ok(text.into()),
            Self::List(parts) => {
                let parts = parts.into_iter().enumerate();
                parts.filter_map(|(index, part)| part.into_part(role, &format!("{path}[{index}]"))).collect()
            }
        }
    }

    /// Removes the parts of reasoning, and returns their text.
    fn take_reasoning(&mut self) -> Option<String> {
        let Self::List(parts) = self else { return None };
        let reasoning = parts.extract_if(.., |part| REASONING.contains(&part.r#type.as_str()));
        let texts: Vec<String> = reasoning.filter_map(|part| part.thinking.or(part.text)).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    /// Returns the text of reasoning, whose parts have types of their own.
    pub(crate) fn into_reasoning(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::List(parts) => {
                let texts = parts.into_iter().filter_map(|part| part.text);
                texts.collect::<Vec<_>>().join("\n")
            }
        }
    }
}

impl WirePart {
    /// Returns the part; `None` for a text of which nothing is left. In the result of a tool, a note stands for what
    /// cannot be read. `path` is the path of the part for errors.
    fn into_part(self, role: Role, path: &str) -> Option<Result<Part, ApiError>> {
        let (what, part) = match self.r#type.as_str() {
            "image_url" | "input_image" | "image" => ("image", self.into_image(path)),
            "input_audio" | "audio" => ("audio", self.into_audio(path).map(Part::Media)),
            "video_url" | "input_video" => ("video", self.into_video(path)),
            "file" | "input_file" => ("file", self.into_file(path)),
            _ => return self.into_text(role, path).map(|text| text.map(Part::text)).transpose(),
        };
        Some(match part {
            Err(_) if role == Role::Tool => Ok(Part::text(omission_note(what))),
            part => part,
        })
    }

    fn into_image(self, path: &str) -> Result<Part, ApiError> {
        let path = format!("{path}.image_url");
        self.image_url.ok_or_else(|| ApiError::required(&path))?.into_part(MediaKind::Image, &path)
    }

    fn into_audio(self, path: &str) -> Result<Media, ApiError> {
        let path = format!("{path}.input_audio");
        self.input_audio.ok_or_else(|| ApiError::required(&path))?.into_media(MediaKind::Audio, &path)
    }

    /// Returns a video, from either of its fields.
    fn into_video(self, path: &str) -> Result<Part, ApiError> {
        let kind = MediaKind::Video;
        match (self.video_url, self.input_video) {
            (None, Some(video)) => video.into_media(kind, &format!("{path}.input_video")).map(Part::Media),
            (url, _) => {
                let path = format!("{path}.video_url");
                url.ok_or_else(|| ApiError::required(&path))?.into_part(kind, &path)
            }
        }
    }

    /// Returns a file that is a picture.
    fn into_file(self, path: &str) -> Result<Part, ApiError> {
        let (file, path) = match self.file {
            Some(file) => (file.file_data, format!("{path}.file.file_data")),
            None => (self.file_data, format!("{path}.file_data")),
        };
        match file.filter(FileUrl::may_be_image) {
            Some(file) => file.into_part(MediaKind::Image, &path),
            None => {
                let message =
                    format!("{path}: expected a picture as a data URL; other files are not supported");
                Err(ApiError::unsupported_as(&path, message))
            }
        }
    }

    /// Returns the text; `None` if nothing of it is left.
    fn into_text(self, role: Role, path: &str) -> Result<Option<String>, ApiError> {
        let text = match self.r#type.as_str() {
            "text" | "input_text" | "output_text" => self.text,
            "refusal" => self.refusal,
            other => {
                let message = format!(
                    "{path}: expected a text, an image, audio or a video, found a part of type {other:?}, which this version of \
                     Narthex does not read"
                );
                return Err(ApiError::unsupported_as(path, message));
            }
        };
        let text = text.ok_or_else(|| ApiError::bad_request(path, format!("{path}: text is missing")))?;
        Ok(stable_text(role, text))
    }
}

impl From<WireRole> for Role {
    fn from(role: WireRole) -> Self {
        match role {
            WireRole::System => Self::System,
            WireRole::Developer => Self::Developer,
            WireRole::User => Self::User,
            WireRole::Assistant => Self::Assistant,
            WireRole::Tool | WireRole::Function => Self::Tool,
        }
    }
}

impl WireFunctionCall {
    fn into_call(self, id: Option<String>) -> ToolCall {
        let arguments = outline::arguments(self.arguments);
        ToolCall { id, function: FunctionCall { name: self.name, arguments } }
    }
}

impl WireToolCall {
    /// Converts the call for the gateway. `path` is its path for errors.
    fn into_call(self, path: &str) -> Result<ToolCall, ApiError> {
        let id = self.id;
        match (self.function, self.custom) {
            (Some(function), _) => Ok(function.into_call(id)),
            (None, Some(WireCustomCall { name, input })) => {
                let arguments = custom_tools::arguments(&input);
                Ok(ToolCall { id, function: FunctionCall { name, arguments } })
            }
            (None, None) => {
                let path = format!("{path}.function");
                Err(ApiError::required(&path))
            }
        }
    }
}

/// Converts messages for the gateway.
pub(crate) fn into_messages(messages: Vec<WireMessage>) -> Result<Vec<Message>, ApiError> {
    messages.into_iter().enumerate().map(|(index, message)| message.into_message(index)).collect()
}

impl WireMessage {
    /// Converts the message for the gateway. `index` is its index for errors.
    fn into_message(mut self, index: usize) -> Result<Message, ApiError> {
        if self.role == WireRole::Assistant {
            let of_content = self.content.as_mut().and_then(WireContent::take_reasoning);
            self.reasoning_content = self.reasoning_content.or(self.reasoning.take()).or(of_content);
        }
        let content = match self.content {
            None => self.refusal.unwrap_or_default().into(),
            Some(content) => content.into_content(self.role.into(), &format!("messages[{index}].content"))?,
        };
        let calls = self.tool_calls.unwrap_or_default().into_iter().enumerate();
        let calls = calls.map(|(at, call)| call.into_call(&format!("messages[{index}].tool_calls[{at}]")));
        let mut tool_calls = calls.collect::<Result<Vec<_>, _>>()?;
        tool_calls.extend(self.function_call.map(|call| call.into_call(None)));
        Ok(Message {
            name: self.name,
            tool_call_id: self.tool_call_id,
            tool_calls,
            reasoning_content: self.reasoning_content.filter(|_| self.role == WireRole::Assistant),
            ..Message::new(self.role.into(), content)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(json: Value) -> Result<Message, ApiError> {
        serde_json::from_value::<WireMessage>(json).unwrap().into_message(3)
    }

    #[test]
    fn histories_of_agents_are_read() {
        let call =
            json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
        let read = message(json!({"role": "assistant", "content": null, "tool_calls": [call]})).unwrap();
        assert_eq!((&*read.content.text(), read.tool_calls[0].id.as_deref()), ("", Some("c1")));
        assert_eq!(read.tool_calls[0].function.arguments, json!({"a": 1}));
        let read = message(json!({"role": "function", "name": "f", "content": "7"})).unwrap();
        assert_eq!((read.role, read.name.as_deref()), (Role::Tool, Some("f")));
        let parts = json!([{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]);
        assert_eq!(message(json!({"role": "user", "content": parts})).unwrap().content, "a\nb");
        assert_eq!(message(json!({"role": "assistant", "refusal": "no"})).unwrap().content, "no");
        let parts = json!([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "a"}]);
        assert_eq!(message(json!({"role": "system", "content": parts})).unwrap().content, "a");
        let parts = json!([
            {"type": "thinking", "thinking": "b", "signature": ""},
            {"type": "redacted_thinking", "data": "AA"},
            {"type": "text", "text": "a"},
        ]);
        let read = message(json!({"role": "assistant", "content": parts})).unwrap();
        assert_eq!((&*read.content.text(), read.reasoning_content.as_deref()), ("a", Some("b")));
        assert!(message(json!({"role": "user", "content": parts})).is_err());
        let both = json!({"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": null});
        assert_eq!(message(both).unwrap().reasoning_content.as_deref(), Some("r"));
        let error = message(json!({"role": "user", "content": [{"type": "model_3d"}]})).unwrap_err().body();
        assert_eq!(error["error"]["param"], "messages[3].content[0]");
    }

    #[test]
    fn arguments_keep_the_digits_of_large_integers() {
        for arguments in [r#"{"a":18446744073709551617}"#, r#""{\"a\":18446744073709551617}""#] {
            let call = format!(
                r#"{{"id":"c1","type":"function","function":{{"name":"f","arguments":{arguments}}}}}"#
            );
            let text = format!(r#"{{"role":"assistant","tool_calls":[{call}]}}"#);
            let read = serde_json::from_str::<WireMessage>(&text).unwrap().into_message(0).unwrap();
            let found = read.tool_calls[0].function.arguments.to_string();
            assert_eq!(found, r#"{"a":18446744073709551617}"#);
        }
    }

    #[test]
    fn images_in_the_results_of_tools_become_notes() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}});
        let parts = json!([{"type": "text", "text": "A cat."}, image, {"type": "input_file"}]);
        let read = message(json!({"role": "tool", "tool_call_id": "c1", "content": parts})).unwrap();
        assert_eq!(read.content.text(), "A cat.\n[file omitted: this model reads text]");
        assert_eq!(read.content.media().count(), 1);
        // An agent sends what its tool returned.
        let file = json!({"type": "image_url", "image_url": {"url": "file:///a.png"}});
        let read = message(json!({"role": "tool", "content": [file, {"type": "image"}]})).unwrap();
        let note = "[image omitted: this model reads text]";
        assert_eq!(read.content, &*format!("{note}\n{note}"));
    }

    #[test]
    fn pictures_and_sounds_keep_their_places() {
        let url = "data:image/png;base64,iVBORw==";
        let parts = json!([
            {"type": "text", "text": "A"},
            {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
            {"type": "input_image", "image_url": url, "detail": "auto"},
            {"type": "text", "text": "B"},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {"type": "file", "file": {"filename": "a.png", "file_data": url}},
            {"type": "input_file", "filename": "a.png", "file_data": url},
            {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
            {"type": "input_video", "input_video": {"data": "R0lGODlh", "format": "gif"}},
        ]);
        let content = message(json!({"role": "user", "content": parts})).unwrap().content;
        let kinds = content.parts().iter().map(|part| match part {
            Part::Text { text, .. } => text.as_str(),
            Part::Media(media) => media.kind().as_str(),
            Part::Remote(_) => "address",
        });
        assert_eq!(
            kinds.collect::<Vec<_>>(),
            ["A", "image", "image", "B", "audio", "image", "image", "video", "video"]
        );
    }

    #[test]
    fn errors_of_media_name_their_fields() {
        let check = |part: Value, param: &str| {
            let parts = json!([{"type": "text", "text": "A"}, part]);
            let error = message(json!({"role": "user", "content": parts})).unwrap_err();
            assert_eq!(error.status(), 400);
            let body = error.body();
            assert_eq!(body["error"]["param"], format!("messages[3].content[1].{param}"), "{body}");
        };
        check(json!({"type": "image_url"}), "image_url");
        check(json!({"type": "image_url", "image_url": {"url": "file:///a.png"}}), "image_url.url");
        check(json!({"type": "input_image", "image_url": "data:image/png;base64,?"}), "image_url");
        check(json!({"type": "input_image", "file_id": "file-1"}), "image_url");
        check(json!({"type": "input_audio", "input_audio": {"data": "?"}}), "input_audio.data");
        check(json!({"type": "file", "file": {"file_id": "file-1"}}), "file.file_data");
        check(json!({"type": "input_file", "file_data": "data:application/pdf;base64,AAAA"}), "file_data");
    }

    #[test]
    fn thousands_of_parts_are_read_in_their_order() {
        let part = |index: usize| match index % 2 {
            0 => json!({"type": "text", "text": format!("{index} ")}),
            _ => json!({"type": "input_image", "image_url": "data:image/png;base64,iVBORw=="}),
        };
        let parts: Vec<Value> = (0..10_000).map(part).collect();
        let content = message(json!({"role": "user", "content": parts})).unwrap().content;
        assert_eq!((content.parts().len(), content.media().count()), (10_000, 5_000));
        assert!(content.text().starts_with("0 2 4 6 "));
    }

    #[test]
    fn calls_of_custom_tools_have_their_input_as_an_argument() {
        let call = json!({"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "a\nb"}});
        let read = message(json!({"role": "assistant", "tool_calls": [call]})).unwrap();
        assert_eq!(read.tool_calls[0].function.arguments, json!({"input": "a\nb"}));
        let error = message(json!({"role": "assistant", "tool_calls": [{"id": "c1"}]})).unwrap_err().body();
        assert_eq!(error["error"]["param"], "messages[3].tool_calls[0].function");
    }
}
