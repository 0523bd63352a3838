//! The document of the API at `/openapi.json`, generated from the types of bodies and answers.
//!
//! An [`Operation`] is a route with its types. The router and the document are built from the same list, so that every
//! route is documented.

use std::collections::BTreeMap;

use axum::{
    handler::Handler,
    routing::{self, MethodRouter},
};
use schemars::{
    JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, transform::transform_subschemas,
};
use serde_json::{Map, Value, json};

#[cfg(any(test, feature = "fuzzing"))]
use crate::error::ApiError;
use crate::{
    access::PathAccess,
    error::OpenAiErrorBody,
    protocol::{
        Protocol,
        body::RequestBody,
        errors::{AnthropicErrorBody, OllamaErrorBody},
    },
};

/// Returns the schema of a type.
type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Reads a body, or returns the error of the request.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) type ReadBody = fn(&[u8]) -> Result<(), ApiError>;

/// Arguments of a handler that reads a body, with axum's marker before them.
pub(crate) trait BodyArguments {
    /// The body.
    type Body: RequestBody;
}

impl<M, A, B: RequestBody> BodyArguments for (M, A, B) {
    type Body = B;
}

impl<M, A1, A2, B: RequestBody> BodyArguments for (M, A1, A2, B) {
    type Body = B;
}

/// A route with its documentation.
pub(crate) struct Operation {
    pub(crate) path: &'static str,
    pub(crate) handler: MethodRouter,
    pub(crate) access: PathAccess,
    /// Set for a report about the server itself, which is answered whatever its clients do.
    pub(crate) is_report: bool,
    /// Reads a body up to the call of the gateway.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) reader: Option<ReadBody>,
    method: &'static str,
    summary: &'static str,
    /// Media type of the body.
    media_type: &'static str,
    /// Types that share the body's object.
    bodies: Vec<SchemaOf>,
    answers: Vec<AnswerSchema>,
}

/// Form of an answer, with its type or that of its parts.
enum AnswerSchema {
    Json(SchemaOf),
    /// Text of a media type.
    Text(&'static str),
    /// Bytes of a media type.
    Bytes(&'static str),
    /// Server-sent events.
    Events(SchemaOf),
    /// Server-sent events that end with `[DONE]`.
    Chunks(SchemaOf),
    /// Lines of JSON.
    Lines(SchemaOf),
    /// Messages of a WebSocket, to which the connection switches.
    Messages(SchemaOf),
}

impl Operation {
    /// Creates an operation without types.
    fn new(method: &'static str, path: &'static str, handler: MethodRouter, summary: &'static str) -> Self {
        Self {
            path,
            handler,
            access: PathAccess::default(),
            is_report: false,
            #[cfg(any(test, feature = "fuzzing"))]
            reader: None,
            method,
            summary,
            media_type: "",
            bodies: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Creates an operation for GET.
    pub(crate) fn get<T: 'static>(
        path: &'static str,
        handler: impl Handler<T, ()>,
        summary: &'static str,
    ) -> Self {
        Self::new("get", path, routing::get(handler), summary)
    }

    /// Creates an operation for POST, whose handler reads a body.
    pub(crate) fn post<T: BodyArguments + 'static>(
        path: &'static str,
        handler: impl Handler<T, ()>,
        summary: &'static str,
    ) -> Self {
        Self::new("post", path, routing::post(handler), summary).reads::<T::Body>()
    }

    /// Creates an operation for DELETE, whose handler reads a body.
    pub(crate) fn delete_named<T: BodyArguments + 'static>(
        path: &'static str,
        handler: impl Handler<T, ()>,
        summary: &'static str,
    ) -> Self {
        Self::new("delete", path, routing::delete(handler), summary).reads::<T::Body>()
    }

    /// Adds the reader of a body.
    fn reads<B: RequestBody>(self) -> Self {
        let operation = Self { media_type: B::MEDIA_TYPE, ..self };
        #[cfg(any(test, feature = "fuzzing"))]
        let operation = Self { reader: Some(B::check), ..operation };
        operation
    }

    /// Creates an operation for DELETE.
    pub(crate) fn delete<T: 'static>(
        path: &'static str,
        handler: impl Handler<T, ()>,
        summary: &'static str,
    ) -> Self {
        Self::new("delete", path, routing::delete(handler), summary)
    }

    /// Answers callers without a required key too.
    pub(crate) fn public(mut self) -> Self {
        self.access.is_public = true;
        self
    }

    /// Does not count requests against the limits of a key.
    pub(crate) fn unmetered(mut self) -> Self {
        self.access.is_unmetered = true;
        self
    }

    /// Answers on connections beyond the maximum too, and without a limit on the memory of answers.
    pub(crate) fn report(self) -> Self {
        Self { is_report: true, ..self }
    }

    /// Adds a type whose fields are in the body.
    pub(crate) fn body<T: JsonSchema>(mut self) -> Self {
        self.bodies.push(schema_of::<T>);
        self
    }

    /// Adds answers of this type.
    pub(crate) fn answers<T: JsonSchema>(self) -> Self {
        self.answers_as(AnswerSchema::Json(schema_of::<T>))
    }

    /// Adds answers that are texts of this media type.
    pub(crate) fn answers_text(self, media: &'static str) -> Self {
        self.answers_as(AnswerSchema::Text(media))
    }

    /// Adds answers that are files of this media type.
    pub(crate) fn or_bytes(self, media: &'static str) -> Self {
        self.answers_as(AnswerSchema::Bytes(media))
    }

    /// Adds answers as server-sent events of this type.
    pub(crate) fn or_events<T: JsonSchema>(self) -> Self {
        self.answers_as(AnswerSchema::Events(schema_of::<T>))
    }

    /// Adds answers as server-sent events of this type, with `[DONE]` at the end.
    pub(crate) fn or_chunks<T: JsonSchema>(self) -> Self {
        self.answers_as(AnswerSchema::Chunks(schema_of::<T>))
    }

    /// Adds answers as lines of JSON of this type.
    pub(crate) fn or_lines<T: JsonSchema>(self) -> Self {
        self.answers_as(AnswerSchema::Lines(schema_of::<T>))
    }

    /// Answers with a WebSocket, whose messages from the server have this type.
    pub(crate) fn switches_to<T: JsonSchema>(self) -> Self {
        self.answers_as(AnswerSchema::Messages(schema_of::<T>))
    }

    fn answers_as(mut self, schema: AnswerSchema) -> Self {
        self.answers.push(schema);
        self
    }

    /// Returns the operation's entry in the document.
    fn document(&self, schemas: &mut Generators) -> Value {
        let mut operation = json!({"summary": self.summary, "operationId": self.id()});
        let parameters: Vec<Value> = self.parameters().map(parameter).collect();
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if !self.bodies.is_empty() {
            let mut parts: Vec<Schema> = self.bodies.iter().map(|of| of(&mut schemas.bodies)).collect();
            let schema = if parts.len() == 1 { json!(parts.pop()) } else { json!({"allOf": parts}) };
            let content = json!({self.media_type: {"schema": schema}});
            operation["requestBody"] = json!({"required": true, "content": content});
        }

        let error = match Protocol::of(self.path) {
            Protocol::OpenAi => schema_of::<OpenAiErrorBody>(&mut schemas.answers),
            Protocol::Anthropic => schema_of::<AnthropicErrorBody>(&mut schemas.answers),
            Protocol::Ollama => schema_of::<OllamaErrorBody>(&mut schemas.answers),
        };
        let mut content = Map::new();
        for answer in &self.answers {
            let (media, schema) = answer.document(&error, &mut schemas.answers);
            content.insert(media.to_owned(), json!({"schema": schema}));
        }

        let mut responses = Map::new();
        let (status, description) = match self.opens_socket() {
            true => ("101", "A WebSocket, whose messages from the server are described here"),
            false => ("200", "The answer"),
        };
        responses.insert(status.to_owned(), json!({"description": description, "content": content}));
        for (status, description) in self.errors() {
            let content = json!({"application/json": {"schema": error}});
            responses.insert(status.to_owned(), json!({"description": description, "content": content}));
        }
        operation["responses"] = responses.into();
        operation
    }

    /// Returns whether the connection switches to a WebSocket.
    fn opens_socket(&self) -> bool {
        self.answers.iter().any(|answer| matches!(answer, AnswerSchema::Messages(_)))
    }

    /// Returns the statuses of errors.
    fn errors(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let has_body = !self.bodies.is_empty();
        let names_something = has_body || self.parameters().next().is_some();
        let all = [
            ("400", "The request is malformed, or names an unknown parameter or value", true),
            ("401", "The API key is missing or unknown", true),
            ("403", "The caller, host or origin may not do this", true),
            ("404", "The model or object does not exist", names_something),
            ("408", "The body arrived too slowly", has_body),
            ("413", "The body is too large", has_body),
            ("415", "The body has an unsupported encoding or type", has_body),
            ("426", "The request does not open a WebSocket", self.opens_socket()),
            ("429", "A limit of the key or of the server is reached; try again later", true),
            ("500", "Internal error", true),
            ("503", "The model is loading or cannot be loaded, or the server is shutting down", true),
        ];
        all.into_iter().filter(|(.., applies)| *applies).map(|(status, text, _)| (status, text))
    }

    /// Returns the names of the path's parameters.
    fn parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    fn id(&self) -> String {
        let words = self.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        [self.method].into_iter().chain(words).collect::<Vec<_>>().join("_")
    }
}

impl AnswerSchema {
    /// Returns the media type and the schema. A part of a stream may be an error of this form.
    fn document(&self, error: &Schema, answers: &mut SchemaGenerator) -> (&'static str, Value) {
        let mut part = |of: &SchemaOf| json!({"anyOf": [of(answers), error]});
        match self {
            Self::Json(of) | Self::Messages(of) => ("application/json", json!(of(answers))),
            Self::Text(media) => (media, json!({"type": "string"})),
            Self::Bytes(media) => (media, json!({"type": "string", "format": "binary"})),
            Self::Lines(of) => ("application/x-ndjson", part(of)),
            Self::Events(of) => ("text/event-stream", event(data(part(of)))),
            Self::Chunks(of) => {
                let data = json!({"anyOf": [data(part(of)), {"const": "[DONE]"}]});
                ("text/event-stream", event(data))
            }
        }
    }
}

/// Returns the schema of an event's data, which is JSON of this schema.
fn data(part: Value) -> Value {
    json!({"contentMediaType": "application/json", "contentSchema": part})
}

/// Returns the schema of an event with this data. It describes the fields, as `itemSchema` of OpenAPI 3.2 does.
fn event(mut data: Value) -> Value {
    data["type"] = "string".into();
    let properties = json!({"event": {"type": "string"}, "data": data});
    json!({"type": "object", "properties": properties, "required": ["data"]})
}

fn parameter(name: &str) -> Value {
    let name = name.trim_start_matches('*');
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}})
}

/// Removes null from the types of fields that an answer may lack, because such a field is left out instead.
fn remove_null(schema: &mut Schema) {
    transform_subschemas(&mut remove_null, schema);
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (_, field) in fields.into_iter().flatten().filter(|(name, _)| !required.contains(&json!(name))) {
        if let Some(types) = field.get_mut("type").and_then(Value::as_array_mut) {
            types.retain(|kind| kind != "null");
        }
        if let Some(any) = field.get_mut("anyOf").and_then(Value::as_array_mut) {
            any.retain(|one| one["type"] != "null");
        }
    }
}

/// Schema generators for bodies and for answers.
struct Generators {
    bodies: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Generators {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Self {
            bodies: settings().for_deserialize().into_generator(),
            answers: settings().for_serialize().with_transform(remove_null).into_generator(),
        }
    }
}

/// Returns the document of these operations.
pub(crate) fn document(operations: &[Operation]) -> Value {
    let mut schemas = Generators::new();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for operation in operations {
        let entry = operation.document(&mut schemas);
        paths
            .entry(operation.path.replace("{*", "{"))
            .or_default()
            .insert(operation.method.to_owned(), entry);
    }

    let mut definitions = schemas.bodies.take_definitions(true);
    definitions.extend(schemas.answers.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Narthex",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Language models on this machine, behind the APIs of OpenAI, Anthropic and Ollama.",
        },
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    })
}
