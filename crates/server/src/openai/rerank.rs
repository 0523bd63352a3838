//! `POST /v1/rerank`, in the form that Cohere's and Jina's APIs share.

use std::fmt;

use axum::response::Response;
use narthex_gateway::request::{InputOverflow, ReadDocument, RerankRequest};
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{PromptUsage, usage_of_prompt};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        blocking::{json_response, run_encoder},
        body::{Body, FromBody},
        device_headers::with_device_headers,
        fields::BodyFields,
        hints,
        id::new_id,
        ignored::IgnoredParameters,
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RerankBody {
    model: String,
    query: String,
    documents: Vec<Document>,
    top_n: Option<usize>,
    return_documents: Option<bool>,
    truncate: Option<bool>,
}

/// A document: a text, or an object with one.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(super) enum Document {
    Text(String),
    Object(DocumentObject),
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct DocumentObject {
    text: String,
    title: Option<String>,
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object(DocumentObject { text, .. }) => text,
        }
    }

    /// Returns the document for a question-answering model.
    pub(super) fn into_read(self) -> ReadDocument {
        match self {
            Self::Text(text) => ReadDocument { title: None, text },
            Self::Object(DocumentObject { text, title }) => ReadDocument { title, text },
        }
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(DocumentVisitor)
    }
}

/// Reads a text without the copies that serde's untagged enums would make.
struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, or an object with the field text")
    }

    fn visit_str<E>(self, text: &str) -> Result<Document, E> {
        Ok(Document::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Document, A::Error> {
        Deserialize::deserialize(MapAccessDeserializer::new(fields)).map(Document::Object)
    }
}

/// A body that was read and checked.
pub(crate) struct ParsedRerank {
    model: String,
    request: RerankRequest,
    truncate: Option<bool>,
    return_documents: bool,
}

impl FromBody for ParsedRerank {
    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body: RerankBody = fields.read()?;
        hints::ignore(fields, &[], ignored)?;
        let request = RerankRequest {
            query: body.query,
            documents: body.documents.into_iter().map(Document::into_text).collect(),
            top_n: body.top_n,
            overlong: InputOverflow::Refuse,
        };
        let RerankBody { model, truncate, return_documents, .. } = body;
        Ok(Self { model, request, truncate, return_documents: return_documents == Some(true) })
    }
}

/// Documents in descending order of relevance.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RerankAnswer {
    id: String,
    model: String,
    results: Vec<RerankResult>,
    usage: PromptUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RerankResult {
    /// Index of the document in the request.
    index: usize,
    /// Relevance, 0 to 1.
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RankedDocument>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RankedDocument {
    text: String,
}

/// Number of times that a document is held while it is returned: in the request, in the answer, and as JSON in a buffer
/// that doubles when it is full.
const DOCUMENT_COPIES: usize = 4;

fn length(documents: &[String]) -> usize {
    documents.iter().map(String::len).sum()
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedRerank>) -> Result<Response, ApiError> {
    let Body { request, ignored, reservation } = body;
    let ParsedRerank { model, mut request, truncate, return_documents } = request;
    request.overlong = app.shared.options.overlong(truncate);
    let answer_bytes = if return_documents { DOCUMENT_COPIES * length(&request.documents) } else { 0 };
    let meter = app.meter.clone();
    let ranking = run_encoder(
        &app,
        &model,
        reservation.into(),
        |_| answer_bytes,
        move |model, cancel| {
            let ranking = model.rerank(&request, cancel)?;
            meter.tokens(ranking.prompt_tokens);
            Ok((ranking, request.documents))
        },
    );
    let (ranking, documents) = ranking.await?;

    let ran_on = ranking.ran_on.clone();
    let response = json_response(&app, move || {
        let results = ranking.results.iter().map(|ranked| RerankResult {
            index: ranked.index,
            relevance_score: ranked.score,
            document: return_documents.then(|| RankedDocument { text: documents[ranked.index].clone() }),
        });
        RerankAnswer {
            id: new_id("rerank-"),
            model,
            results: results.collect(),
            usage: usage_of_prompt(ranking.prompt_tokens),
        }
    });
    Ok(ignored.name_in(with_device_headers(&ran_on, response.await?)))
}
