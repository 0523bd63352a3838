//! The route table.

pub(crate) mod openapi;
mod paths;

use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    extract::{MatchedPath, Request, State},
    http::{
        HeaderName, HeaderValue, StatusCode,
        header::{CONNECTION, CONTENT_TYPE},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use hyper::body::Body as _;
use serde_json::Value;

use self::{openapi::Operation, paths::Paths};
use crate::{
    access::{self, Access},
    anthropic::{
        messages::{self, InputTokenCount},
        object::AnthropicMessage,
        request::MessagesBody,
        stream::AnthropicEvent,
    },
    app::App,
    error::ApiError,
    http::{
        access_log::AccessLine,
        held_body::{hold, hold_until_sent},
    },
    ollama::{
        self,
        embed::{EmbedAnswer, EmbedBody, EmbeddingAnswer, PromptEmbedBody},
        lines::{AnswerLine, ChatContent, GeneratedText},
        models::{InstalledModels, LoadedModels, ShownModel, Version},
        options::AnswerFields,
        pull::PullLine,
    },
    openai::{
        answer::{self, QuestionAnswers},
        audio::{
            speech::{self, SpeechBody, SpeechPart},
            stream::TranscriptEvent,
            transcription::{self, TranscriptObject, TranscriptionForm},
            voices::{self, VoiceList},
        },
        catalogue::{self, Catalogue, ModelPlan},
        chat,
        chat_answer::{ChatCompletion, ChatDelta},
        classify::{self, ClassificationList},
        completions::{self, TextChoice, TextCompletion},
        decisions::{self, DecisionObject},
        embeddings::{self, EmbeddingList},
        fill::{self, FilledText},
        load_forecast::{self, LoadForecastObject},
        models::{self, ModelList, ModelObject},
        predict::{self, Predictions},
        realtime::{self, events::ServerEvent},
        render::WirePrompt,
        rerank::{self, RerankAnswer},
        responses::{
            self, DeletedResponse, NumberedEvent, ResponseInputTokens, ResponseObject, ResponseStore,
            input_items::InputItemList,
        },
        settings::{self, SettingsBody, SettingsObject},
        stream::Chunk,
        systemone::{self, SystemOneObject},
        token_endpoints::{self, DetokenizeBody, TemplateText, TokenList, TokenText, TokenizeBody},
    },
    page,
    protocol::{
        errors,
        hints::Hints,
        id::{self, RequestId},
        options::{ChoiceOptions, Sampling},
        reasoning::ReasoningOptions,
        response_format::GrammarOptions,
        shared_fields::SharedFields,
        tools::ToolOptions,
    },
    reports::{health::HealthReport, history::ServerHistory, metrics::Metrics, requests::RequestList},
};

/// Header with the id of a request, for the logs of clients and proxies.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum length of an id from a client.
const MAX_ID: usize = 128;

/// The routers of a server.
pub(crate) struct Routers {
    /// Every route, protected by access control.
    pub(crate) all: Router,
    /// Answers only reports about the server, on connections that end after one answer. It refuses other requests,
    /// because every connection is in use.
    pub(crate) reports: Router,
}

/// Returns the routers of the route table.
pub(crate) fn routers(access: Access) -> Routers {
    let mut operations = operations();
    operations.push(api_document(openapi::document(&operations)));
    operations.extend(of_page());
    let paths = Arc::new(Paths::new(&operations));
    let all = router(access, operations, paths.clone());
    let reports = all
        .clone()
        .layer(middleware::from_fn_with_state(paths, only_reports))
        .layer(middleware::from_fn(errors::translate_errors));
    Routers { all, reports }
}

/// Returns the router with every route.
fn router(access: Access, operations: Vec<Operation>, paths: Arc<Paths>) -> Router {
    let metrics = access.metrics();
    let access = access.with_paths(operations.iter().map(|one| (one.path, one.access)).collect());
    let routes = operations
        .into_iter()
        .fold(Router::new(), |routes, operation| routes.route(operation.path, operation.handler));
    let routes = routes
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(Extension(ResponseStore::new()))
        .layer(middleware::from_fn_with_state(paths.clone(), hold_answer))
        .layer(middleware::from_fn_with_state(metrics, count))
        .layer(middleware::from_fn_with_state(Arc::new(access), access::check))
        .layer(middleware::from_fn(errors::translate_errors))
        .layer(middleware::from_fn(identify));
    // The path must be canonical before it is matched with a route.
    Router::new().fallback_service(routes).layer(middleware::from_fn_with_state(paths, paths::normalise))
}

/// Answers a request on a connection beyond the maximum if it is for a report.
async fn only_reports(State(paths): State<Arc<Paths>>, request: Request, next: Next) -> Response {
    let mut response = match paths.is_report(request.uri().path()) {
        true => next.run(request).await,
        false => ApiError::no_connection().into_response(),
    };
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Returns the routes of the API.
pub(crate) fn operations() -> Vec<Operation> {
    [of_openai(), of_prompts(), of_others(), of_ollama()].into_iter().flatten().collect()
}

/// Returns the route of the API's document, which does not list itself.
fn api_document(document: Value) -> Operation {
    let document = Arc::new(document);
    Operation::get(
        "/openapi.json",
        async move || Json(document.as_ref().clone()),
        "Return the document of the API",
    )
    .unmetered()
}

/// Returns the routes of the page. They are public, because the page itself asks for the key.
fn of_page() -> [Operation; 4] {
    [
        Operation::get("/", page::root, "Return the page, or report that the server is running"),
        Operation::get("/page/app.js", page::script, "Return the script of the page"),
        Operation::get("/page/app.css", page::style, "Return the styles of the page"),
        Operation::get("/page/icon.svg", page::icon, "Return the icon of the page"),
    ]
    .map(|operation| operation.public().unmetered())
}

fn of_openai() -> Vec<Operation> {
    use Operation as Op;
    vec![
        Op::post("/v1/chat/completions", chat::create, "Answer a conversation")
            .body::<chat::ChatBody>()
            .body::<ToolOptions>()
            .body::<ChoiceOptions>()
            .body::<SharedFields>()
            .body::<Hints>()
            .answers::<ChatCompletion>()
            .or_chunks::<Chunk<ChatDelta>>(),
        Op::post("/v1/completions", completions::create, "Continue a text")
            .body::<completions::CompletionBody>()
            .body::<ChoiceOptions>()
            .body::<Sampling>()
            .body::<GrammarOptions>()
            .body::<Hints>()
            .answers::<TextCompletion>()
            .or_chunks::<Chunk<TextChoice>>(),
        Op::post("/v1/responses", responses::create, "Give a response")
            .body::<responses::ResponsesBody>()
            .body::<SharedFields>()
            .body::<Hints>()
            .answers::<ResponseObject>()
            .or_events::<NumberedEvent>(),
        Op::post(
            "/v1/responses/input_tokens",
            responses::count_input_tokens,
            "Count the tokens of a request for a response",
        )
        .body::<responses::ResponsesBody>()
        .body::<SharedFields>()
        .body::<Hints>()
        .answers::<ResponseInputTokens>(),
        Op::get("/v1/responses/{id}", responses::retrieve, "Return a stored response")
            .answers::<ResponseObject>(),
        Op::get(
            "/v1/responses/{id}/input_items",
            responses::input_items::list,
            "List the input of a stored response",
        )
        .answers::<InputItemList>(),
        Op::delete("/v1/responses/{id}", responses::remove, "Remove a stored response")
            .answers::<DeletedResponse>(),
        Op::post("/v1/embeddings", embeddings::create, "Embed texts")
            .body::<embeddings::EmbeddingsBody>()
            .body::<Hints>()
            .answers::<EmbeddingList>(),
        of_transcripts(Op::post("/v1/audio/transcriptions", transcription::transcribe, "Transcribe speech")),
        of_transcripts(Op::post(
            "/v1/audio/translations",
            transcription::translate,
            "Translate speech to English",
        )),
        Op::post("/v1/audio/speech", speech::create, "Speak a text")
            .body::<SpeechBody>()
            .body::<Hints>()
            .or_bytes("audio/wav")
            .or_bytes("audio/pcm")
            .or_bytes("audio/flac")
            .or_bytes("audio/ogg")
            .or_events::<SpeechPart>(),
        Op::get("/v1/realtime", realtime::connect::connect, "Transcribe live audio over a WebSocket")
            .switches_to::<ServerEvent>(),
        Op::get("/v1/audio/voices", voices::list, "List the voices").answers::<VoiceList>(),
        Op::get("/v1/models", models::list, "List the installed models").answers::<ModelList>(),
        Op::get("/v1/models/{*id}", models::retrieve, "Return one model").answers::<ModelObject>(),
    ]
}

/// Returns the routes for the prompts of requests, as vLLM has them.
fn of_prompts() -> Vec<Operation> {
    use Operation as Op;
    vec![
        Op::post(
            "/v1/chat/completions/render",
            chat::render,
            "Return the prompt of a conversation as tokens",
        )
        .body::<chat::ChatBody>()
        .body::<ToolOptions>()
        .body::<ChoiceOptions>()
        .body::<SharedFields>()
        .body::<Hints>()
        .answers::<WirePrompt>(),
        Op::post("/v1/completions/render", completions::render, "Return prompts as tokens")
            .body::<completions::CompletionBody>()
            .body::<ChoiceOptions>()
            .body::<Sampling>()
            .body::<GrammarOptions>()
            .body::<Hints>()
            .answers::<Vec<WirePrompt>>(),
    ]
}

/// Adds the form and the answers of a transcript.
fn of_transcripts(operation: Operation) -> Operation {
    operation
        .body::<TranscriptionForm>()
        .answers::<TranscriptObject>()
        .answers_text("text/plain")
        .answers_text("text/vtt")
        .answers_text("application/x-subrip")
        .or_events::<TranscriptEvent>()
}

fn of_others() -> Vec<Operation> {
    use Operation as Op;
    vec![
        Op::post("/v1/messages", messages::create, "Answer a conversation")
            .body::<MessagesBody>()
            .body::<SharedFields>()
            .body::<Hints>()
            .answers::<AnthropicMessage>()
            .or_events::<AnthropicEvent>(),
        Op::post("/v1/messages/count_tokens", messages::count_tokens, "Count the tokens of a conversation")
            .body::<MessagesBody>()
            .body::<SharedFields>()
            .body::<Hints>()
            .answers::<InputTokenCount>(),
        Op::post("/v1/rerank", rerank::create, "Sort documents by relevance")
            .body::<rerank::RerankBody>()
            .body::<Hints>()
            .answers::<RerankAnswer>(),
        Op::post("/v1/classify", classify::create, "Classify texts, or their tokens")
            .body::<classify::ClassifyBody>()
            .body::<Hints>()
            .answers::<ClassificationList>(),
        Op::post("/predict", predict::create, "Classify texts or pairs of texts")
            .body::<predict::PredictBody>()
            .body::<Hints>()
            .answers::<Predictions>(),
        Op::post("/v1/decisions", decisions::create, "Decide questions about a text")
            .body::<decisions::DecisionBody>()
            .body::<Hints>()
            .answers::<DecisionObject>(),
        Op::post("/v1/systemone", systemone::create, "Decide typed questions about a state")
            .body::<systemone::SystemOneBody>()
            .body::<Hints>()
            .answers::<SystemOneObject>(),
        Op::post("/v1/answer", answer::create, "Find answers in a text")
            .body::<answer::AnswerBody>()
            .body::<Hints>()
            .answers::<QuestionAnswers>(),
        Op::post("/v1/fill", fill::create, "Predict masked tokens")
            .body::<fill::FillBody>()
            .body::<Hints>()
            .answers::<FilledText>(),
        Op::get("/v1/catalogue", catalogue::list, "List the models of the catalogue, the most useful first")
            .answers::<Catalogue>(),
        Op::get("/v1/catalogue/{*id}", catalogue::plan, "Plan a model on this machine")
            .answers::<ModelPlan>(),
        Op::get("/v1/load/{*id}", load_forecast::forecast, "State what a load of a model would do")
            .answers::<LoadForecastObject>(),
        Op::get("/v1/settings", settings::show, "Return the settings of the models")
            .answers::<SettingsObject>(),
        Op::post("/v1/settings", settings::change, "Change the settings of a model")
            .body::<SettingsBody>()
            .answers::<SettingsObject>(),
        Op::post("/tokenize", token_endpoints::tokenize, "Return the tokens of a text")
            .body::<TokenizeBody>()
            .body::<ReasoningOptions>()
            .answers::<TokenList>(),
        Op::post("/detokenize", token_endpoints::detokenize, "Return the text of tokens")
            .body::<DetokenizeBody>()
            .answers::<TokenText<'static>>(),
        Op::post("/apply-template", token_endpoints::apply_template, "Return the prompt of a conversation")
            .body::<TokenizeBody>()
            .body::<ReasoningOptions>()
            .answers::<TemplateText>(),
        Op::get("/health", health, "Report the state of the server")
            .public()
            .unmetered()
            .report()
            .answers::<HealthReport>(),
        Op::get("/health/history", history, "Report the last hour of the server")
            .unmetered()
            .answers::<ServerHistory>(),
        Op::get("/health/requests", requests, "List the last requests, without texts")
            .unmetered()
            .answers::<RequestList>(),
        Op::get("/metrics", metrics_text, "Return metrics for Prometheus")
            .unmetered()
            .report()
            .answers_text("application/openmetrics-text"),
    ]
}

fn of_ollama() -> Vec<Operation> {
    use Operation as Op;
    vec![
        Op::post("/api/chat", ollama::chat::create, "Answer a conversation")
            .body::<ollama::chat::OllamaBody>()
            .body::<AnswerFields>()
            .body::<ToolOptions>()
            .body::<SharedFields>()
            .body::<Hints>()
            .answers::<AnswerLine<ChatContent>>()
            .or_lines::<AnswerLine<ChatContent>>(),
        Op::post("/api/generate", ollama::generate::create, "Answer or continue a prompt")
            .body::<ollama::generate::GenerateBody>()
            .body::<AnswerFields>()
            .body::<SharedFields>()
            .body::<Hints>()
            .answers::<AnswerLine<GeneratedText>>()
            .or_lines::<AnswerLine<GeneratedText>>(),
        Op::post("/api/embed", ollama::embed::embed, "Embed texts")
            .body::<EmbedBody>()
            .body::<Hints>()
            .answers::<EmbedAnswer>(),
        Op::post("/api/embeddings", ollama::embed::embeddings, "Embed a text")
            .body::<PromptEmbedBody>()
            .body::<Hints>()
            .answers::<EmbeddingAnswer>(),
        Op::post("/api/show", ollama::models::show, "Describe a model")
            .body::<ollama::models::ShowBody>()
            .answers::<ShownModel>(),
        Op::post("/api/pull", ollama::pull::create, "Fetch and compile a model")
            .body::<ollama::pull::PullBody>()
            .answers::<PullLine>()
            .or_lines::<PullLine>(),
        Op::post("/api/create", ollama::create::create, "Add a custom model")
            .body::<ollama::create::CreateBody>()
            .answers::<PullLine>()
            .or_lines::<PullLine>(),
        Op::post("/api/copy", ollama::models::copy, "Give a model an additional name")
            .body::<ollama::models::CopyBody>(),
        Op::delete_named("/api/delete", ollama::models::delete, "Remove a model")
            .body::<ollama::models::ShowBody>(),
        Op::get("/api/ps", ollama::models::ps, "List the models in memory").answers::<LoadedModels>(),
        Op::get("/api/tags", ollama::models::tags, "List the installed models").answers::<InstalledModels>(),
        Op::get("/api/version", ollama::models::version, "Return the version").answers::<Version>(),
    ]
}

async fn health(app: App) -> Json<HealthReport> {
    if !app.meter.caller.is_known() {
        return Json(HealthReport::alive());
    }
    let devices = app.shared.devices.current(&app.gateway).await;
    let report = HealthReport::new(&app.gateway.status(), &app.memory(), app.gateway.power(), devices);
    Json(report.with_upstreams(app.shared.upstreams.report(&app.gateway.config().upstreams)))
}

async fn history(app: App) -> Json<ServerHistory> {
    Json(app.shared.history.report())
}

async fn requests(app: App) -> Result<Json<RequestList>, ApiError> {
    app.check_admin("/health/requests")?;
    Ok(Json(app.shared.requests.report()))
}

async fn metrics_text(app: App) -> Result<impl IntoResponse, ApiError> {
    app.check_admin("/metrics")?;
    let text = app.meter.metrics.render(&app.gateway.status(), &app.memory(), app.gateway.power().as_ref());
    Ok(([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text))
}

async fn unknown_path(request: Request) -> ApiError {
    let path = request.uri().path();
    if let Some(instead) = ollama::unsupported(path) {
        let message = format!("{path} is not supported; {instead}");
        return ApiError::plain(StatusCode::NOT_IMPLEMENTED, message);
    }
    let message = format!("unknown path {path}; the API is at /v1, the health report at /health");
    ApiError::plain(StatusCode::NOT_FOUND, message)
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} is not allowed on {}", request.method(), request.uri().path());
    ApiError::plain(StatusCode::METHOD_NOT_ALLOWED, message)
}

async fn count(
    State(metrics): State<Arc<Metrics>>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let route = route.map_or_else(|| "unknown".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    metrics.request(&route, response.status().as_u16());
    response
}

/// Holds the memory of an answer until its client has taken it. Refuses an answer if its memory was not reserved before
/// and there is no room. Reports about the server are always answered.
async fn hold_answer(
    State(paths): State<Arc<Paths>>,
    app: App,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let is_report = paths.is_report(request.uri().path());
    let response = next.run(request).await;
    if is_report {
        return Ok(response);
    }
    let length = response.body().size_hint().exact();
    app.answer.resize_to(length.map(|length| usize::try_from(length).unwrap_or(usize::MAX)))?;
    Ok(hold_until_sent(app.answer, response))
}

/// Adds the request's id to the response: the one from the client, or a new one. Logs the request at the end of the
/// response.
async fn identify(mut request: Request, next: Next) -> Response {
    let mut line = AccessLine::new(request.method(), request.uri().path());
    let chosen = request
        .headers()
        .get(REQUEST_ID)
        .cloned()
        .filter(|id| (1..=MAX_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic));
    let id = chosen.or_else(|| HeaderValue::try_from(id::new_id("req_")).ok());
    if let Some(id) = &id {
        request.extensions_mut().insert(RequestId(id.clone()));
    }
    let mut response = next.run(request).await;
    if let Some(id) = id {
        line.respond(response.status(), id.to_str().unwrap_or_default());
        response.headers_mut().insert(REQUEST_ID, id);
    }
    hold(line, response)
}
