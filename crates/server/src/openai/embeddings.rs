//! `POST /v1/embeddings`.

use axum::{Json, response::Response};
use base64::{Engine, prelude::BASE64_STANDARD};
use narthex_gateway::{
    Cancel, Gateway,
    request::{EmbedRequest, Overlong},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{prompts::Prompts, read_body, usage_of_prompt};
use crate::{
    app::App,
    blocking::run_cancellable,
    body::{Body, FromBody},
    device_headers::with_device_headers,
    error::ApiError,
    model_name::refuse_path,
};

/// Maximum number of inputs in one request.
const MAX_INPUTS: usize = 2048;

/// Fields of a body.
const FIELDS: &[&str] = &["model", "input", "encoding_format", "dimensions", "truncate", "prompt_name"];

#[derive(Debug, Deserialize)]
struct EmbeddingsBody {
    model: String,
    input: Prompts<MAX_INPUTS>,
    encoding_format: Option<Format>,
    dimensions: Option<usize>,
    truncate: Option<Truncate>,
    prompt_name: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Float,
    Base64,
}

/// `truncate`: a flag, or the end to cut, as in other servers.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected true, false, \"END\" or \"NONE\"")]
enum Truncate {
    Flag(bool),
    End(End),
}

#[derive(Debug, Deserialize)]
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
    format: Format,
}

impl FromBody for ParsedEmbeddings {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let body: EmbeddingsBody = read_body(body, &[FIELDS])?;
        refuse_path(&body.model)?;
        let overlong = match body.truncate {
            Some(Truncate::Flag(true) | Truncate::End(End::End)) => Overlong::Truncate,
            Some(Truncate::Flag(false) | Truncate::End(End::None)) | None => Overlong::Refuse,
        };
        let (inputs, dimensions, prompt) = (body.input.0, body.dimensions, body.prompt_name);
        let request = EmbedRequest { inputs, overlong, dimensions, prompt };
        Ok(Self { model: body.model, request, format: body.encoding_format.unwrap_or_default() })
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<ParsedEmbeddings>) -> Result<Response, ApiError> {
    let Body(ParsedEmbeddings { model, request, format }, held) = body;
    let name = model.clone();
    let call = move |gateway: &Gateway, cancel: &Cancel| gateway.embed(&name, &request, cancel);
    let answer = run_cancellable(&app, &model, held, call).await?;
    app.meter.tokens(answer.prompt_tokens);
    let data: Vec<Value> = answer
        .vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| json!({"object": "embedding", "index": index, "embedding": encode(vector, format)}))
        .collect();
    let body = json!({
        "object": "list",
        "data": data,
        "model": model,
        "usage": usage_of_prompt(answer.prompt_tokens),
    });
    Ok(with_device_headers(&answer.ran_on, Json(body)))
}

fn encode(vector: &[f32], format: Format) -> Value {
    match format {
        Format::Float => vector.into(),
        Format::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            BASE64_STANDARD.encode(bytes).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_little_endian_f32() {
        assert_eq!(encode(&[1.0], Format::Base64), "AACAPw==");
        assert_eq!(encode(&[1.5], Format::Float), json!([1.5]));
    }
}
