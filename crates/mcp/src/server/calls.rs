//! The tools: their arguments, their answers and their descriptions for agents.

use std::{collections::BTreeMap, sync::mpsc};

use narthex_gateway::{
    Cancel, Error, Gateway,
    check::{CheckRequest, NpuTarget, RyzenAiReport},
    models::ModelKind,
    plan::PlanRequest,
    request::{
        ChatRequest, EmbedRequest, FinishReason, GenerateOptions, GenerationEvent, Grammar, HistoryOverflow,
        InputOverflow, Message, Prompt, ReadingSettings, ReasoningSettings, RequestGrammar, RerankRequest,
        Role, ToolSettings,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{
    McpOptions,
    models::{CallModel, NamedModel},
};

/// Maximum number of tokens of an answer if the call states none.
const MAX_TOKENS: usize = 1024;

/// Reads the arguments of a call and answers it.
type RunCall = fn(&CallSite, Map<String, Value>, &Cancel) -> Result<ToolAnswer, CallError>;

/// A tool.
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    /// Schema of its arguments.
    pub(super) input: fn() -> Map<String, Value>,
    /// Schema of its structured answer, if it has a fixed one.
    pub(super) output: Option<fn() -> Map<String, Value>>,
    run: RunCall,
}

/// Every tool.
pub(super) const CALLS: [Call; 5] = [
    Call {
        name: "chat",
        description: "Asks a language model that runs on this machine. Returns its answer as text.",
        input: schema::<ChatArguments>,
        output: None,
        run: |site, arguments, cancel| site.chat(read(arguments)?, cancel),
    },
    Call {
        name: "embeddings",
        description: "Turns texts into vectors of unit length with an embedding model on this machine, for search and \
                      comparison: texts of similar meaning have a high dot product.",
        input: schema::<EmbeddingArguments>,
        output: Some(schema::<EmbeddingAnswer>),
        run: |site, arguments, cancel| site.embeddings(read(arguments)?, cancel),
    },
    Call {
        name: "rerank",
        description: "Sorts documents by their relevance to a query with a reranker on this machine.",
        input: schema::<RerankArguments>,
        output: Some(schema::<RerankAnswer>),
        run: |site, arguments, cancel| site.rerank(read(arguments)?, cancel),
    },
    Call {
        name: "check",
        description: "Checks whether a model would run on an NPU, and lists the obstacles with their fixes.",
        input: schema::<CheckArguments>,
        output: None,
        run: |site, arguments, cancel| site.check(read(arguments)?, cancel),
    },
    Call {
        name: "plan",
        description: "Estimates a model's size, memory and suitability for NPUs before it is downloaded.",
        input: schema::<PlanArguments>,
        output: None,
        run: |site, arguments, cancel| site.plan(read(arguments)?, cancel),
    },
];

/// Arguments of `chat`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ChatArguments {
    /// The question or task.
    prompt: String,
    /// Instructions that precede it.
    system: Option<String>,
    /// Name of the model, such as qwen3:0.6b. Default: an installed chat model.
    model: Option<String>,
    /// Maximum number of tokens of the answer. Default: 1024.
    max_tokens: Option<usize>,
    /// Sampling temperature, 0 (the likeliest answer) to 2. Default: that of the model's publisher, or else 0.
    temperature: Option<f32>,
    /// JSON schema that the answer must follow. The answer is then JSON.
    schema: Option<Map<String, Value>>,
}

/// Arguments of `embeddings`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EmbeddingArguments {
    /// The texts.
    texts: Vec<String>,
    /// Name of the model, such as all-minilm-l6-v2. Default: an installed embedding model.
    model: Option<String>,
    /// Number of leading elements of each vector to keep. Default: all.
    dimensions: Option<usize>,
    /// Name of the model's prompt that precedes each text, such as query. Default: the model's own.
    prompt: Option<String>,
    /// Cuts texts that are too long instead of refusing them.
    #[serde(default)]
    truncate: bool,
}

/// Answer of `embeddings`.
#[derive(Debug, Serialize, JsonSchema)]
struct EmbeddingAnswer {
    /// Name of the model.
    model: String,
    /// One vector for each text, in their order.
    embeddings: Vec<Vec<f32>>,
    /// Number of tokens of all texts.
    prompt_tokens: usize,
}

/// Arguments of `rerank`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RerankArguments {
    /// The query.
    query: String,
    /// The documents.
    documents: Vec<String>,
    /// Maximum number of results. Default: all documents.
    top_n: Option<usize>,
    /// Name of the model, such as ms-marco-minilm-l6-v2. Default: an installed reranker.
    model: Option<String>,
    /// Cuts documents that are too long instead of refusing them.
    #[serde(default)]
    truncate: bool,
}

/// Answer of `rerank`.
#[derive(Debug, Serialize, JsonSchema)]
struct RerankAnswer {
    /// Name of the model.
    model: String,
    /// Documents in descending order of relevance.
    results: Vec<RankedText>,
}

/// A document with its relevance.
#[derive(Debug, Serialize, JsonSchema)]
struct RankedText {
    /// Index among the given documents, from 0.
    index: usize,
    /// Relevance, 0 to 1.
    score: f32,
    /// The document.
    document: String,
}

/// Arguments of `check`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CheckArguments {
    /// Name of a model, hf:owner/repo, or the path of an ONNX file, a folder or a checkpoint.
    model: String,
    /// NPU, such as qnn:x-elite, openvino:lunar-lake or ryzen-ai. Default: qnn:x-elite.
    target: Option<String>,
    /// Extents of symbolic dimensions by name, such as {"batch": 1}.
    #[serde(default)]
    extents: BTreeMap<String, u64>,
}

/// Arguments of `plan`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PlanArguments {
    /// Name of a model, hf:owner/repo, the folder of a checkpoint, or a GGUF file.
    model: String,
    /// NPUs to include, such as qnn:x-elite or ryzen-ai. Default: all.
    #[serde(default)]
    targets: Vec<String>,
}

/// Failure of a call.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// Error of the library.
    #[error(transparent)]
    Library(#[from] Error),
    /// The arguments are not those of the tool.
    #[error("{0}")]
    Invalid(String),
    /// The model failed while it answered.
    #[error("the answer failed: {0}")]
    Failed(String),
}

impl CallError {
    /// Returns the next step.
    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::Library(error) => error.hint(),
            Self::Invalid(_) | Self::Failed(_) => None,
        }
    }
}

/// Answer of a tool.
#[derive(Debug)]
pub(super) struct ToolAnswer {
    /// Texts.
    pub(super) text: Vec<String>,
    /// The answer as a JSON object.
    pub(super) structured: Option<Value>,
}

impl ToolAnswer {
    /// An answer whose text is its JSON.
    fn json(answer: &impl Serialize) -> Result<Self, CallError> {
        let value = value(answer)?;
        Ok(Self { text: vec![value.to_string()], structured: Some(value) })
    }
}

/// The models and settings of the tools.
pub(super) struct CallSite {
    pub(super) gateway: Gateway,
    pub(super) options: McpOptions,
}

impl CallSite {
    /// Calls a tool.
    pub(super) fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        cancel: &Cancel,
    ) -> Result<ToolAnswer, CallError> {
        match CALLS.iter().find(|call| call.name == name) {
            Some(call) => (call.run)(self, arguments, cancel),
            None => Err(CallError::Invalid(format!("no tool is named {name:?}"))),
        }
    }

    fn chat(&self, arguments: ChatArguments, cancel: &Cancel) -> Result<ToolAnswer, CallError> {
        let ChatArguments { prompt, system, model, max_tokens, temperature, schema } = arguments;
        let configured = self.options.chat_model.as_deref();
        let model = CallModel { named: model.as_deref(), configured, kind: ModelKind::Chat };
        let model = model.load(&self.gateway, cancel)?.model;
        let system = system.map(|text| Message::new(Role::System, text));
        let limit = max_tokens.unwrap_or(MAX_TOKENS);
        let request = ChatRequest {
            messages: system.into_iter().chain([Message::new(Role::User, prompt)]).collect(),
            tools: ToolSettings::default(),
            reasoning: ReasoningSettings::default(),
            overflow: HistoryOverflow::Refuse,
            reading: ReadingSettings::default(),
            options: GenerateOptions {
                max_tokens: Some(limit),
                temperature,
                default_temperature: 0.0,
                grammar: schema.map(|schema| RequestGrammar {
                    grammar: Grammar::JsonSchema(Value::Object(schema)),
                    field: "schema",
                }),
                ..GenerateOptions::api_defaults()
            },
        };

        let (sender, events) = mpsc::channel();
        let generation = model.chat(request, Box::new(sender))?;
        let _callback = cancel.on_cancel(move || generation.cancel());

        let mut answer = String::new();
        let mut cut = None;
        for event in events {
            match event {
                GenerationEvent::Text { text, .. } => answer.push_str(&text),
                GenerationEvent::Finished { reason: FinishReason::Length, .. } => {
                    cut = Some(format!(
                        "[The answer was cut after {limit} tokens or at the end of the context.]"
                    ));
                }
                GenerationEvent::Finished { reason: FinishReason::Cancelled, .. } => {
                    return Err(Error::Cancelled.into());
                }
                GenerationEvent::Done(_) => {
                    let text = [answer].into_iter().chain(cut).collect();
                    return Ok(ToolAnswer { text, structured: None });
                }
                GenerationEvent::Failed { message, .. } => return Err(CallError::Failed(message)),
                GenerationEvent::Started { .. }
                | GenerationEvent::Reasoning { .. }
                | GenerationEvent::ToolCall { .. }
                | GenerationEvent::Finished { .. } => {}
            }
        }
        Err(CallError::Failed("the engine stopped before it was complete".to_owned()))
    }

    fn embeddings(&self, arguments: EmbeddingArguments, cancel: &Cancel) -> Result<ToolAnswer, CallError> {
        let EmbeddingArguments { texts, model, dimensions, prompt, truncate } = arguments;
        let configured = self.options.embedding_model.as_deref();
        let model = CallModel { named: model.as_deref(), configured, kind: ModelKind::Embedding };
        let NamedModel { name, model } = model.load(&self.gateway, cancel)?;
        let inputs = texts.into_iter().map(Prompt::Text).collect();
        let request = EmbedRequest { inputs, overlong: overlong(truncate), dimensions, prompt };
        let found = model.embed(&request, cancel)?;
        let embeddings = found.vectors;
        let prompt_tokens = found.prompt_tokens;
        ToolAnswer::json(&EmbeddingAnswer { model: name, embeddings, prompt_tokens })
    }

    fn rerank(&self, arguments: RerankArguments, cancel: &Cancel) -> Result<ToolAnswer, CallError> {
        let RerankArguments { query, documents, top_n, model, truncate } = arguments;
        let configured = self.options.rerank_model.as_deref();
        let model = CallModel { named: model.as_deref(), configured, kind: ModelKind::Rerank };
        let NamedModel { name, model } = model.load(&self.gateway, cancel)?;
        let request = RerankRequest { query, documents, top_n, overlong: overlong(truncate) };
        let ranking = model.rerank(&request, cancel)?;
        let results = ranking.results.iter().map(|ranked| RankedText {
            index: ranked.index,
            score: ranked.score,
            document: request.documents.get(ranked.index).cloned().unwrap_or_default(),
        });
        ToolAnswer::json(&RerankAnswer { model: name, results: results.collect() })
    }

    fn check(&self, arguments: CheckArguments, cancel: &Cancel) -> Result<ToolAnswer, CallError> {
        let target = target(arguments.target.as_deref().unwrap_or("qnn:x-elite"), "target")?;
        let NpuTarget::WithRules(target) = target else {
            if !arguments.extents.is_empty() {
                return Err(CallError::Invalid(format!("extents: {}", RyzenAiReport::NO_RULES)));
            }
            let found = self.gateway.check_ryzen_ai(&arguments.model, cancel)?;
            return Ok(ToolAnswer { text: vec![found.to_string()], structured: Some(value(&found)?) });
        };
        let request = CheckRequest {
            subject: arguments.model,
            target,
            extents: arguments.extents,
            fix: None,
            compiler: self.options.compiler.clone(),
        };
        let found = self.gateway.check(&request, cancel)?;
        Ok(ToolAnswer { text: vec![found.report.to_string()], structured: Some(value(&found)?) })
    }

    fn plan(&self, arguments: PlanArguments, cancel: &Cancel) -> Result<ToolAnswer, CallError> {
        let targets = arguments.targets.iter().map(|text| target(text, "targets"));
        let targets = targets.collect::<Result<_, _>>()?;
        let request = PlanRequest { targets, ..PlanRequest::new(arguments.model) };
        ToolAnswer::json(&self.gateway.plan(&request, cancel)?)
    }
}

fn overlong(truncate: bool) -> InputOverflow {
    if truncate { InputOverflow::Truncate } else { InputOverflow::Refuse }
}

fn target(text: &str, field: &str) -> Result<NpuTarget, CallError> {
    text.parse().map_err(|error| CallError::Invalid(format!("{field}: {error}")))
}

/// Reads the arguments of a call.
fn read<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, CallError> {
    serde_path_to_error::deserialize(Value::Object(arguments))
        .map_err(|error| CallError::Invalid(format!("arguments: {error}")))
}

fn value(answer: &impl Serialize) -> Result<Value, CallError> {
    serde_json::to_value(answer).map_err(|error| CallError::Failed(error.to_string()))
}

/// Returns the JSON schema of a type.
fn schema<T: JsonSchema>() -> Map<String, Value> {
    match schemars::schema_for!(T).to_value() {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_describe_the_arguments_that_are_read() {
        let check = |name: &str, arguments: Value, expect: Option<&str>| {
            let call = CALLS.iter().find(|call| call.name == name).unwrap();
            let schema = Value::Object((call.input)());
            assert_eq!(jsonschema::is_valid(&schema, &arguments), expect.is_none(), "{name} {arguments}");
            let Value::Object(arguments) = arguments else { panic!("no object") };
            let read = match name {
                "chat" => read::<ChatArguments>(arguments).err(),
                "embeddings" => read::<EmbeddingArguments>(arguments).err(),
                "rerank" => read::<RerankArguments>(arguments).err(),
                "check" => read::<CheckArguments>(arguments).err(),
                _ => read::<PlanArguments>(arguments).err(),
            };
            let read = read.map(|error| error.to_string());
            assert_eq!(read.is_some(), expect.is_some(), "{read:?}");
            assert!(read.unwrap_or_default().contains(expect.unwrap_or_default()));
        };
        check("chat", json!({"prompt": "hi", "max_tokens": 3, "schema": {"type": "object"}}), None);
        check(
            "chat",
            json!({"prompt": "hi", "tokens": 3}),
            Some("unknown field `tokens`, expected one of `prompt`"),
        );
        check("chat", json!({}), Some("missing field `prompt`"));
        check("chat", json!({"prompt": "hi", "max_tokens": -1}), Some("max_tokens"));
        check("embeddings", json!({"texts": ["a"], "truncate": true}), None);
        check("embeddings", json!({"texts": "a"}), Some("expected a sequence"));
        check("rerank", json!({"query": "a", "documents": ["b"], "top_n": null}), None);
        check("check", json!({"model": "gpt2", "extents": {"batch": 1}}), None);
        check("plan", json!({"model": "gpt2", "targets": ["qnn:x-elite"]}), None);
        check("plan", json!({"model": 1}), Some("expected a string"));
    }
}
