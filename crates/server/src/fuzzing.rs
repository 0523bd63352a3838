//! Entry point for fuzz targets: request bodies as the endpoints read them. Not part of the product.

use serde_json::Value;

use crate::{
    body::FromBody,
    error::ApiError,
    openai::{
        answer::ParsedAnswer, chat::ParsedChat, completions::ParsedCompletion, embeddings::ParsedEmbeddings,
        fill::ParsedFill, rerank::ParsedRerank,
    },
};

/// Endpoint that reads a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/embeddings`.
    Embeddings,
    /// `/v1/rerank`.
    Rerank,
    /// `/v1/answer`.
    Answer,
    /// `/v1/fill`.
    Fill,
}

impl Endpoint {
    /// Every endpoint that has a body.
    pub const ALL: [Self; 6] =
        [Self::Chat, Self::Completions, Self::Embeddings, Self::Rerank, Self::Answer, Self::Fill];
}

/// Reads a body up to the call of the gateway.
///
/// # Errors
/// The JSON body of the error response.
pub fn read_body(endpoint: Endpoint, body: &[u8]) -> Result<(), Value> {
    let read = || -> Result<(), ApiError> {
        match endpoint {
            Endpoint::Chat => ParsedChat::read(body).map(drop),
            Endpoint::Completions => ParsedCompletion::read(body).map(drop),
            Endpoint::Embeddings => ParsedEmbeddings::read(body).map(drop),
            Endpoint::Rerank => ParsedRerank::read(body).map(drop),
            Endpoint::Answer => ParsedAnswer::read(body).map(drop),
            Endpoint::Fill => ParsedFill::read(body).map(drop),
        }
    };
    read().map_err(|error| error.body())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_reads_its_own_body() {
        let check = |endpoint, body: &str, param: Option<&str>| {
            let found = read_body(endpoint, body.as_bytes());
            let found =
                found.err().map(|error| error["error"]["param"].as_str().unwrap_or("none").to_owned());
            assert_eq!(found.as_deref(), param, "{endpoint:?} {body}");
        };
        let messages = r#""messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]"#;
        check(Endpoint::Chat, &format!(r#"{{"model": "m", {messages}}}"#), None);
        check(Endpoint::Chat, &format!(r#"{{"model": "m", {messages}, "n": -1}}"#), Some("n"));
        check(Endpoint::Chat, r#"{"model": "m", "prompt": "a"}"#, Some("messages"));
        check(Endpoint::Completions, r#"{"model": "m", "prompt": ["a", "b"]}"#, None);
        check(Endpoint::Completions, r#"{"model": "m", "prompt": []}"#, Some("prompt"));
        check(Endpoint::Embeddings, r#"{"model": "m", "input": [[1, 2], [3]]}"#, None);
        check(Endpoint::Embeddings, r#"{"model": "m"}"#, Some("input"));
        check(Endpoint::Embeddings, "{", Some("none"));
        check(Endpoint::Rerank, r#"{"model": "m", "query": "a", "documents": ["b", {"text": "c"}]}"#, None);
        check(Endpoint::Rerank, r#"{"model": "m", "query": "a"}"#, Some("documents"));
        check(Endpoint::Answer, r#"{"model": "m", "question": "a", "context": "b"}"#, None);
        check(Endpoint::Answer, r#"{"model": "m", "question": "a"}"#, Some("context"));
        check(Endpoint::Fill, r#"{"model": "m", "text": "a [MASK]", "top_k": 2}"#, None);
        check(Endpoint::Fill, r#"{"model": "m", "text": "a", "generate": 2, "rounds": 3}"#, None);
        check(Endpoint::Fill, r#"{"model": "m", "text": "a", "generate": 2, "top_k": 3}"#, Some("top_k"));
        check(Endpoint::Fill, r#"{"model": "m", "text": "a", "rounds": 3}"#, Some("rounds"));
    }
}
