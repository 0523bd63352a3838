//! `POST /v1/embeddings`.

use axum::{Json, extract::State, response::Response};
use base64::{Engine, prelude::BASE64_STANDARD};
use narthex_gateway::request::{EmbedRequest, Overlong, Prompt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{read_body, usage_of_prompt};
use crate::{
    app::App, blocking::run_cancellable, body::Body, device_headers::with_device_headers, error::ApiError,
    model_name::refuse_path,
};

/// Fields of a body.
const FIELDS: &[&str] = &["model", "input", "encoding_format", "dimensions", "truncate", "prompt_name"];

#[derive(Debug, Deserialize)]
pub(crate) struct EmbeddingsBody {
    model: String,
    input: Input,
    encoding_format: Option<Format>,
    dimensions: Option<usize>,
    truncate: Option<Truncate>,
    prompt_name: Option<String>,
}

/// Forms of `input`.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, a list of tokens, or a list of either")]
enum Input {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
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

impl EmbeddingsBody {
    /// Reads a body and checks the model name.
    pub(crate) fn read(body: &Value) -> Result<Self, ApiError> {
        let request: Self = read_body(body, &[FIELDS])?;
        refuse_path(&request.model)?;
        Ok(request)
    }

    /// Returns the gateway's request.
    pub(crate) fn to_request(&self) -> EmbedRequest {
        let inputs = match &self.input {
            Input::Text(text) => vec![Prompt::Text(text.clone())],
            Input::Tokens(tokens) => vec![Prompt::Tokens(tokens.clone())],
            Input::Texts(texts) => texts.iter().cloned().map(Prompt::Text).collect(),
            Input::TokenLists(lists) => lists.iter().cloned().map(Prompt::Tokens).collect(),
        };
        let overlong = match self.truncate {
            Some(Truncate::Flag(true) | Truncate::End(End::End)) => Overlong::Truncate,
            Some(Truncate::Flag(false) | Truncate::End(End::None)) | None => Overlong::Refuse,
        };
        EmbedRequest { inputs, overlong, dimensions: self.dimensions, prompt: self.prompt_name.clone() }
    }
}

/// Handles a request.
pub(crate) async fn create(State(app): State<App>, Body(body): Body) -> Result<Response, ApiError> {
    let request = EmbeddingsBody::read(&body)?;
    let embed = request.to_request();
    let format = request.encoding_format.unwrap_or_default();
    let (gateway, model) = (app.gateway.clone(), request.model.clone());
    let answer = run_cancellable(move |cancel| gateway.embed(&model, &embed, cancel)).await?;
    let data: Vec<Value> = answer
        .vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| json!({"object": "embedding", "index": index, "embedding": encode(vector, format)}))
        .collect();
    let body = json!({
        "object": "list",
        "data": data,
        "model": request.model,
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

    #[test]
    fn inputs_have_four_forms() {
        let input = |text: &str| serde_json::from_str::<Input>(text);
        assert!(matches!(input(r#""a""#), Ok(Input::Text(_))));
        assert!(matches!(input("[1, 2]"), Ok(Input::Tokens(_))));
        assert!(matches!(input(r#"["a", "b"]"#), Ok(Input::Texts(_))));
        assert!(matches!(input("[[1], [2]]"), Ok(Input::TokenLists(_))));
        assert!(input("[-1]").is_err() && input("{}").is_err());
    }
}
