//! `POST /v1/embeddings`.

use axum::response::Response;
use base64::{Engine, prelude::BASE64_STANDARD};
use narthex_gateway::request::{EmbedRequest, Embeddings, InputOverflow, MAX_INPUTS};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    PromptUsage,
    upstream::{self, RequestRoute, UpstreamEndpoint, UpstreamRequest},
    usage_of_prompt,
};
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        blocking::json_response,
        body::{Body, FromBody},
        device_headers::with_device_headers,
        embeddings,
        fields::BodyFields,
        hints,
        ignored::IgnoredParameters,
        prompts::Prompts,
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EmbeddingsBody {
    model: String,
    input: Prompts<MAX_INPUTS>,
    encoding_format: Option<Format>,
    dimensions: Option<usize>,
    truncate: Option<Truncate>,
    prompt_name: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Float,
    Base64,
}

/// `truncate`: a flag, or the end that is cut off, as in other servers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected true, false, \"END\" or \"NONE\"")]
enum Truncate {
    Flag(bool),
    End(End),
}

#[derive(Debug, Deserialize, JsonSchema)]
enum End {
    #[serde(rename = "END", alias = "end")]
    End,
    #[serde(rename = "NONE", alias = "none")]
    None,
}

/// A body that was read and checked.
pub(crate) struct ParsedEmbeddings {
    model: String,
    request: EmbedRequest,
    truncate: Option<bool>,
    format: Format,
}

impl UpstreamRequest for ParsedEmbeddings {
    const ENDPOINT: UpstreamEndpoint = UpstreamEndpoint::Embeddings;
}

impl FromBody for ParsedEmbeddings {
    const TOKENS: Option<&'static str> = Some("input");

    fn read(fields: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body: EmbeddingsBody = fields.read()?;
        hints::ignore(fields, &[], ignored)?;
        let truncate = body.truncate.map(|truncate| match truncate {
            Truncate::Flag(flag) => flag,
            Truncate::End(end) => matches!(end, End::End),
        });
        let request = EmbedRequest {
            inputs: body.input.0,
            overlong: InputOverflow::Refuse,
            dimensions: body.dimensions,
            prompt: body.prompt_name,
        };
        let format = body.encoding_format.unwrap_or_default();
        Ok(Self { model: body.model, request, truncate, format })
    }
}

/// Answer with a vector for each input.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EmbeddingList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    data: Vec<EmbeddingObject>,
    model: String,
    usage: PromptUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
struct EmbeddingObject {
    #[schemars(extend("const" = "embedding"))]
    object: &'static str,
    index: usize,
    embedding: EmbeddingVector,
}

/// A vector in the requested form.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum EmbeddingVector {
    Float(Vec<f32>),
    /// Elements of 32 bits, little endian.
    Base64(String),
}

/// Handles a request.
pub(crate) async fn create(
    app: App,
    body: Body<RequestRoute<ParsedEmbeddings>>,
) -> Result<Response, ApiError> {
    upstream::answer(&app, body, |body| answer(&app, body)).await
}

/// Answers a request with a model of this machine.
async fn answer(app: &App, body: Body<ParsedEmbeddings>) -> Result<Response, ApiError> {
    let Body { request, ignored, reservation } = body;
    let ParsedEmbeddings { model, mut request, truncate, format } = request;
    request.overlong = app.shared.options.overlong(truncate);
    let answer = embeddings::embed(app, &model, request, reservation).await?;
    let Embeddings { vectors, prompt_tokens, ran_on } = answer;
    let response = json_response(app, move || {
        let data = vectors.into_iter().enumerate().map(|(index, vector)| EmbeddingObject {
            object: "embedding",
            index,
            embedding: encode(vector, format),
        });
        let usage = usage_of_prompt(prompt_tokens);
        EmbeddingList { object: "list", data: data.collect(), model, usage }
    });
    Ok(ignored.name_in(with_device_headers(&ran_on, response.await?)))
}

fn encode(vector: Vec<f32>, format: Format) -> EmbeddingVector {
    match format {
        Format::Float => EmbeddingVector::Float(vector),
        Format::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            EmbeddingVector::Base64(BASE64_STANDARD.encode(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_little_endian_f32() {
        let json = |vector, format| serde_json::to_value(encode(vector, format)).unwrap();
        assert_eq!(json(vec![1.0], Format::Base64), "AACAPw==");
        assert_eq!(json(vec![1.5], Format::Float), serde_json::json!([1.5]));
    }
}
