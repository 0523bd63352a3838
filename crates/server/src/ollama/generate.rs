//! `POST /api/generate`: an answer to a prompt, with or without the chat template.

use axum::response::Response;
use narthex_gateway::request::{
    ChatRequest, CompletionRequest, Echo, HistoryOverflow, Message, Prompt, ReasoningSettings, Role,
    ToolSettings,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    change_memory,
    lines::{AnswerLines, GeneratedText},
    options::{AnswerFields, Retention, Think},
    unload,
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
        let retention = answer_fields.take_retention();
        let think = answer_fields.think;
        let is_streamed = answer_fields.is_streamed();
        let options = answer_fields.options(shared.sampling, shared.grammar, ignored)?;
        let mut reasoning_parameters = Think::name(think);
        if body.raw == Some(true) {
            // A continuation has no chat template and does not reason.
            ignored.extend(reasoning_parameters.drain(..).chain(shared.reasoning.given_without_template()));
        }

        reasoning_parameters.extend(shared.reasoning.given());
        let work = if prompt.is_empty() {
            GenerateWork::ChangeMemory
        } else if body.raw == Some(true) {
            let prompt = Prompt::Text(prompt);
            GenerateWork::Continue(Box::new(CompletionRequest { prompt, echo: Echo::Completion, options }))
        } else {
            let system = body.system.filter(|text| !text.is_empty());
            let system = system.map(|text| Message::new(Role::System, text));
            let messages = system.into_iter().chain([Message::new(Role::User, prompt)]).collect();
            let tools = ToolSettings::default();
            let reasoning = think.map_or_else(ReasoningSettings::default, Think::settings);
            let reasoning = shared.reasoning.settings_after(reasoning);
            let overflow = HistoryOverflow::Refuse;
            GenerateWork::Answer(Box::new(ChatRequest { messages, tools, reasoning, overflow, options }))
        };
        Ok(Self { model: body.model, is_streamed, work, retention, reasoning_parameters })
    }
}

/// Handles a request. Without a prompt it loads or unloads the model.
pub(crate) async fn create(app: App, body: Body<ParsedGenerate>) -> Result<Response, ApiError> {
    let Body { request, mut ignored, reservation } = body;
    let ParsedGenerate { model, is_streamed, work, retention, reasoning_parameters } = request;
    let form = AnswerLines::<GeneratedText>::new(model.clone());
    let unloads = !matches!(work, GenerateWork::ChangeMemory) && retention.unloads_for(&app, &mut ignored);

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
    if unloads {
        unload(&app, &model).await?;
    }
    Ok(response)
}
