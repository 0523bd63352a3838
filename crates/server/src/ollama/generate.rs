//! `POST /api/generate`: an answer to a prompt, with or without the chat template.

use axum::response::Response;
use narthex_gateway::request::{
    ChatRequest, CompletionRequest, Content, Echo, HistoryOverflow, Message, Part, Prompt, ReadingSettings,
    ReasoningSettings, Role, ToolSettings,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    change_memory,
    lines::{AnswerLines, GeneratedText},
    options::{AnswerFields, Retention, Think},
    retain,
};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        body::{Body, FromBody},
        conversation::{self, Conversation, ResponseMode},
        events,
        fields::BodyFields,
        hints,
        ignored::IgnoredParameters,
        media::Base64File,
        shared_fields::SharedFields,
    },
};

/// Body of the request, without the fields that both endpoints share.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct GenerateBody {
    model: String,
    prompt: Option<String>,
    system: Option<String>,
    raw: Option<bool>,
    /// Pictures in base64, which stand before the prompt.
    #[schemars(with = "Option<Vec<String>>")]
    images: Option<Vec<Base64File>>,
}

/// A body that was read and checked.
pub(crate) struct ParsedGenerate {
    model: String,
    is_streamed: bool,
    work: GenerateWork,
    retention: Retention,
    /// Parameters of reasoning, which have no effect on a model that does not reason.
    reasoning_parameters: Vec<&'static str>,
}

/// Work that a request asks for.
enum GenerateWork {
    /// Loading or unloading the model.
    ChangeMemory,
    /// An answer to the prompt as a message of a user.
    Answer(Box<ChatRequest>),
    /// A continuation of the prompt.
    Continue(Box<CompletionRequest>),
}

impl FromBody for ParsedGenerate {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body: GenerateBody = fields.read()?;
        let shared = SharedFields::read(fields)?;
        let mut answer_fields: AnswerFields = fields.read()?;
        hints::ignore(fields, &[], ignored)?;

        let prompt = body.prompt.unwrap_or_default();
        let retention = answer_fields.take_retention(ignored);
        let think = answer_fields.think;
        let is_streamed = answer_fields.is_streamed();
        let options = answer_fields.options(shared.sampling, shared.grammar, ignored)?;
        let mut reasoning_parameters = Think::name(think);
        if body.raw == Some(true) {
            // A continuation has no chat template and does not reason.
            ignored.extend(reasoning_parameters.drain(..).chain(shared.reasoning.given_without_template()));
        }

        reasoning_parameters.extend(shared.reasoning.given());
        let images = body.images.unwrap_or_default();
        let work = if prompt.is_empty() && images.is_empty() {
            GenerateWork::ChangeMemory
        } else if body.raw == Some(true) {
            if !images.is_empty() {
                let message = "images: a raw prompt has no place for images; remove raw or images";
                return Err(ApiError::unsupported_as("images", message.to_owned()));
            }
            let prompt = Prompt::Text(prompt);
            GenerateWork::Continue(Box::new(CompletionRequest { prompt, echo: Echo::Completion, options }))
        } else {
            let system = body.system.filter(|text| !text.is_empty());
            let system = system.map(|text| Message::new(Role::System, text));
            let images = images.into_iter().enumerate();
            let parts =
                images.map(|(index, image)| image.into_media(&format!("images[{index}]")).map(Part::Media));
            let content: Content = parts.chain([Ok(Part::text(prompt))]).collect::<Result<_, ApiError>>()?;
            let messages = system.into_iter().chain([Message::new(Role::User, content)]).collect();
            let tools = ToolSettings::default();
            let reasoning = think.map_or_else(ReasoningSettings::default, Think::settings);
            let reasoning = shared.reasoning.settings_after(reasoning);
            let overflow = HistoryOverflow::Refuse;
            let reading = ReadingSettings::default();
            GenerateWork::Answer(Box::new(ChatRequest {
                messages,
                tools,
                reasoning,
                overflow,
                reading,
                options,
            }))
        };
        Ok(Self { model: body.model, is_streamed, work, retention, reasoning_parameters })
    }
}

/// Handles a request. Without a prompt and images it loads or unloads the model.
pub(crate) async fn create(app: App, body: Body<ParsedGenerate>) -> Result<Response, ApiError> {
    let Body { request, mut ignored, reservation } = body;
    let ParsedGenerate { model, is_streamed, work, retention, reasoning_parameters } = request;
    let form = AnswerLines::<GeneratedText>::new(model.clone());
    let retention = match work {
        GenerateWork::ChangeMemory => retention.without_work(&app, &mut ignored),
        GenerateWork::Answer(_) | GenerateWork::Continue(_) => retention.permitted_for(&app, &mut ignored),
    };

    let response = match work {
        GenerateWork::ChangeMemory => {
            return Ok(ignored.name_in(change_memory(&app, form, retention).await?));
        }
        GenerateWork::Answer(request) => {
            let model = model.clone();
            let request = Conversation { model, request: *request, is_streamed, reasoning_parameters };
            conversation::answer(&app, Body { request, ignored, reservation }, form).await?
        }
        GenerateWork::Continue(request) => {
            let events = events::start(&app, &model, reservation, None, move |model, sink| {
                model.complete(*request, sink)
            });
            let events = events.await?;
            let mode = ResponseMode { n: 1, is_streamed };
            ignored.name_in(conversation::whole_or_streamed(&app, events, form, mode).await?)
        }
    };
    retain(&app, &model, retention).await?;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::protocol::body::read_checked;

    fn read(fields: Value) -> Result<ParsedGenerate, ApiError> {
        let mut body = json!({"model": "m"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        read_checked(body.to_string().as_bytes())
    }

    #[test]
    fn images_stand_before_the_prompt() {
        for (prompt, parts) in [("What is it?", 2), ("", 1)] {
            let parsed = read(json!({"prompt": prompt, "images": ["R0lG"]})).ok().unwrap();
            let GenerateWork::Answer(request) = parsed.work else { panic!("{prompt:?} is answered") };
            let content = &request.messages[0].content;
            assert!(matches!(content.parts()[0], Part::Media(_)) && content.parts().len() == parts);
        }
        let param = |fields: Value| read(fields).err().unwrap().body()["error"]["param"].clone();
        assert_eq!(param(json!({"prompt": "a", "images": ["R0lG", "?"]})), "images[1]");
        assert_eq!(param(json!({"prompt": "a", "images": ["R0lG"], "raw": true})), "images");
        assert!(matches!(read(json!({"images": []})).ok().unwrap().work, GenerateWork::ChangeMemory));
    }
}
