//! `POST /api/generate`: an answer to a prompt, with or without the chat template.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use narthex_gateway::{
    ReadyModel,
    request::{ChatRequest, CompletionRequest, Echo, Message, Prompt, ReasoningSettings, Role, ToolSettings},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    lines::{AnswerLines, GeneratedText},
    options::{AnswerFields, Think, is_zero},
    unload,
};
use crate::{
    app::App,
    body::{Body, FromBody},
    conversation::{self, Conversation, Delivery},
    error::ApiError,
    events,
    ignored::IgnoredParameters,
    loading,
    openai::shared_fields::ConversationBody,
};

/// Names of the fields.
const FIELDS: &[&str] = &[
    "model",
    "prompt",
    "system",
    "raw",
    "stream",
    "format",
    "options",
    "keep_alive",
    "logprobs",
    "top_logprobs",
    "think",
];

/// Body of the request.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct GenerateBody {
    model: String,
    #[serde(default)]
    prompt: String,
    system: Option<String>,
    raw: Option<bool>,
    stream: Option<bool>,
    format: Option<Value>,
    options: Option<Map<String, Value>>,
    keep_alive: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    think: Option<Think>,
}

/// A body that was read and checked.
pub(crate) struct ParsedGenerate {
    model: String,
    is_streamed: bool,
    work: GenerateWork,
    ignored: IgnoredParameters,
    /// Parameters of reasoning, which have no effect on a model that does not reason.
    of_reasoning: Vec<&'static str>,
}

/// Work that a request asks for.
enum GenerateWork {
    /// Loading the model.
    Load,
    /// Removing the model from memory.
    Unload,
    /// An answer to the prompt as a message of a user.
    Answer(Box<ChatRequest>),
    /// A continuation of the prompt.
    Continue(Box<CompletionRequest>),
}

impl FromBody for ParsedGenerate {
    fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let ConversationBody { own: body, shared, mut ignored } =
            ConversationBody::<GenerateBody>::read(bytes, &[FIELDS], &[])?;
        let GenerateBody { options, format, logprobs, top_logprobs, .. } = body;
        let unloads = body.prompt.is_empty() && is_zero(body.keep_alive.as_ref());
        let keep_alive = body.keep_alive.filter(|_| !unloads);
        let fields = AnswerFields { options, format, keep_alive, logprobs, top_logprobs };
        let options = fields.read(shared.sampling, shared.grammar, &mut ignored)?;
        let mut of_reasoning = Think::name(body.think);
        if body.raw == Some(true) {
            // A continuation has no chat template and does not reason.
            ignored.extend(of_reasoning.drain(..).chain(shared.reasoning.given_without_template()));
        }
        of_reasoning.extend(shared.reasoning.given());
        let work = if unloads {
            GenerateWork::Unload
        } else if body.prompt.is_empty() {
            GenerateWork::Load
        } else if body.raw == Some(true) {
            let prompt = Prompt::Text(body.prompt);
            GenerateWork::Continue(Box::new(CompletionRequest { prompt, echo: Echo::Completion, options }))
        } else {
            let system = body.system.filter(|text| !text.is_empty());
            let system = system.map(|text| Message::new(Role::System, text));
            let messages = system.into_iter().chain([Message::new(Role::User, body.prompt)]).collect();
            let tools = ToolSettings::default();
            let reasoning = body.think.map_or_else(ReasoningSettings::default, Think::settings);
            let reasoning = shared.reasoning.settings_after(reasoning);
            GenerateWork::Answer(Box::new(ChatRequest { messages, tools, reasoning, options }))
        };
        Ok(Self { model: body.model, is_streamed: body.stream != Some(false), work, ignored, of_reasoning })
    }

    fn ignored(&self) -> Option<&IgnoredParameters> {
        Some(&self.ignored)
    }
}

/// Handles a request. Without a prompt it loads or unloads the model.
pub(crate) async fn create(app: App, body: Body<ParsedGenerate>) -> Result<Response, ApiError> {
    let Body(ParsedGenerate { model, is_streamed, work, ignored, of_reasoning }, held) = body;
    let form = AnswerLines::<GeneratedText>::new(model.clone());
    match work {
        GenerateWork::Load => {
            loading::wait(&app, &model).await?;
            Ok(ignored.name_in(Json(form.loaded()).into_response()))
        }
        GenerateWork::Unload => {
            unload(&app, &model).await?;
            Ok(ignored.name_in(Json(form.unloaded()).into_response()))
        }
        GenerateWork::Answer(request) => {
            let conversation = Conversation { model, request: *request, is_streamed, ignored, of_reasoning };
            conversation::answer(&app, conversation, held, form).await
        }
        GenerateWork::Continue(request) => {
            let call = move |model: &ReadyModel, sink| model.complete(*request, sink);
            let events = events::start(&app, &model, held, None, call).await?;
            let delivery = Delivery { n: 1, is_streamed };
            Ok(ignored.name_in(conversation::whole_or_streamed(&app, events, form, delivery).await?))
        }
    }
}
