//! Entry points for fuzz targets: request bodies as the endpoints read them, and files for TLS. Not part of the product.

use serde_json::Value;

use crate::{
    access::host_of,
    anthropic::messages::ParsedMessages,
    error::ApiError,
    http::tls::TlsFiles,
    ollama::{
        chat::ParsedOllamaChat,
        embed::{EmbedBody, PromptEmbedBody},
        generate::ParsedGenerate,
        models::ShowBody,
        pull::PullBody,
    },
    openai::{
        answer::ParsedAnswer,
        chat::ParsedChat,
        completions::ParsedCompletion,
        embeddings::ParsedEmbeddings,
        fill::ParsedFill,
        rerank::ParsedRerank,
        responses::ParsedResponses,
        token_endpoints::{DetokenizeBody, ParsedTemplate, ParsedTokenize},
    },
    protocol::body::read_checked,
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
    /// `/v1/responses`.
    Responses,
    /// `/v1/responses/input_tokens`.
    ResponseInputTokens,
    /// `/v1/messages`.
    Messages,
    /// `/v1/messages/count_tokens`.
    CountTokens,
    /// `/api/chat`.
    OllamaChat,
    /// `/api/generate`.
    OllamaGenerate,
    /// `/api/embed`.
    OllamaEmbed,
    /// `/api/embeddings`.
    OllamaEmbeddings,
    /// `/api/show`.
    OllamaShow,
    /// `/api/pull`.
    OllamaPull,
    /// `/tokenize`.
    Tokenize,
    /// `/detokenize`.
    Detokenize,
    /// `/apply-template`.
    ApplyTemplate,
}

impl Endpoint {
    /// Every endpoint that has a body.
    pub const ALL: [Self; 19] = [
        Self::Chat,
        Self::Completions,
        Self::Embeddings,
        Self::Rerank,
        Self::Answer,
        Self::Fill,
        Self::Responses,
        Self::ResponseInputTokens,
        Self::Messages,
        Self::CountTokens,
        Self::OllamaChat,
        Self::OllamaGenerate,
        Self::OllamaEmbed,
        Self::OllamaEmbeddings,
        Self::OllamaShow,
        Self::OllamaPull,
        Self::Tokenize,
        Self::Detokenize,
        Self::ApplyTemplate,
    ];

    /// Returns the path.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Rerank => "/v1/rerank",
            Self::Answer => "/v1/answer",
            Self::Fill => "/v1/fill",
            Self::Responses => "/v1/responses",
            Self::ResponseInputTokens => "/v1/responses/input_tokens",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::OllamaChat => "/api/chat",
            Self::OllamaGenerate => "/api/generate",
            Self::OllamaEmbed => "/api/embed",
            Self::OllamaEmbeddings => "/api/embeddings",
            Self::OllamaShow => "/api/show",
            Self::OllamaPull => "/api/pull",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
            Self::ApplyTemplate => "/apply-template",
        }
    }
}

/// Reads a body up to the call of the gateway.
///
/// # Errors
/// The JSON body of the error response.
pub fn read_body(endpoint: Endpoint, body: &[u8]) -> Result<(), Value> {
    let read = || -> Result<(), ApiError> {
        match endpoint {
            Endpoint::Chat => read_checked::<ParsedChat>(body).map(drop),
            Endpoint::Completions => read_checked::<ParsedCompletion>(body).map(drop),
            Endpoint::Embeddings => read_checked::<ParsedEmbeddings>(body).map(drop),
            Endpoint::Rerank => read_checked::<ParsedRerank>(body).map(drop),
            Endpoint::Answer => read_checked::<ParsedAnswer>(body).map(drop),
            Endpoint::Fill => read_checked::<ParsedFill>(body).map(drop),
            Endpoint::Responses | Endpoint::ResponseInputTokens => {
                read_checked::<ParsedResponses>(body).map(drop)
            }
            Endpoint::Messages | Endpoint::CountTokens => read_checked::<ParsedMessages>(body).map(drop),
            Endpoint::OllamaChat => read_checked::<ParsedOllamaChat>(body).map(drop),
            Endpoint::OllamaGenerate => read_checked::<ParsedGenerate>(body).map(drop),
            Endpoint::OllamaEmbed => read_checked::<EmbedBody>(body).map(drop),
            Endpoint::OllamaEmbeddings => read_checked::<PromptEmbedBody>(body).map(drop),
            Endpoint::OllamaShow => read_checked::<ShowBody>(body).map(drop),
            Endpoint::OllamaPull => read_checked::<PullBody>(body).map(drop),
            Endpoint::Tokenize => read_checked::<ParsedTokenize>(body).map(drop),
            Endpoint::ApplyTemplate => read_checked::<ParsedTemplate>(body).map(drop),
            Endpoint::Detokenize => read_checked::<DetokenizeBody>(body).map(drop),
        }
    };
    read().map_err(|error| error.body())
}

/// Returns the host in a `Host` header, if the header is well-formed.
pub fn read_host_header(header: &str) -> Option<String> {
    host_of(header)
}

/// Reads a certificate and its private key.
///
/// # Errors
/// The reason if the files cannot be used.
pub fn read_tls_files(files: &TlsFiles) -> Result<(), String> {
    files.acceptor().map(drop)
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
        check(Endpoint::Responses, r#"{"model": "m", "input": "a"}"#, None);
        check(Endpoint::Messages, &format!(r#"{{"model": "m", "max_tokens": 1, {messages}}}"#), None);
        check(
            Endpoint::OllamaChat,
            r#"{"model": "m", "messages": [{"role": "user", "content": "a"}]}"#,
            None,
        );
        check(Endpoint::OllamaGenerate, r#"{"model": "m", "prompt": "a"}"#, None);
        check(Endpoint::OllamaEmbed, r#"{"model": "m", "input": ["a"]}"#, None);
        check(Endpoint::OllamaEmbeddings, r#"{"model": "m", "prompt": "a"}"#, None);
        check(Endpoint::OllamaEmbeddings, r#"{"prompt": "a"}"#, Some("model"));
        check(Endpoint::OllamaShow, r#"{"name": "m", "verbose": true}"#, None);
        check(Endpoint::OllamaPull, r#"{"model": "m", "stream": false}"#, None);
        check(Endpoint::OllamaPull, r#"{"stream": false}"#, Some("model"));
        check(Endpoint::CountTokens, &format!(r#"{{"model": "m", {messages}}}"#), None);
        check(Endpoint::ApplyTemplate, &format!(r#"{{"model": "m", {messages}}}"#), None);
        check(Endpoint::ApplyTemplate, r#"{"model": "m", "content": "a"}"#, Some("messages"));
        check(Endpoint::Tokenize, r#"{"model": "m", "content": "a"}"#, None);
        check(Endpoint::Detokenize, r#"{"model": "m", "tokens": [1]}"#, None);
        check(Endpoint::Detokenize, r#"{"model": "m"}"#, Some("tokens"));
    }

    #[test]
    fn every_route_with_a_body_is_listed() {
        let document = crate::routes::openapi::document(&crate::routes::operations());
        let paths = document["paths"].as_object().unwrap().iter();
        let with_body: Vec<&str> = paths
            .filter(|(_, methods)| {
                methods.as_object().unwrap().values().any(|method| method.get("requestBody").is_some())
            })
            .map(|(path, _)| path.as_str())
            .collect();
        let mut listed = Endpoint::ALL.map(Endpoint::path);
        listed.sort_unstable();
        assert_eq!(with_body, listed);
    }

    #[test]
    fn hosts_are_read() {
        assert_eq!(read_host_header("LOCALHOST.:80").as_deref(), Some("localhost"));
        assert_eq!(read_host_header("a b"), None);
    }

    #[test]
    fn long_lists_are_lists_of_tokens() {
        let check = |endpoint, field: &str, item: &str, items: usize, is_read: bool| {
            let list = vec![item; items].join(",");
            let body = format!(r#"{{"model": "m", "{field}": [{list}]}}"#);
            match read_body(endpoint, body.as_bytes()) {
                Ok(()) => assert!(is_read, "{endpoint:?} {item}"),
                Err(error) => {
                    assert!(!is_read && error["error"]["param"] == field, "{endpoint:?} {item}: {error}");
                }
            }
        };
        check(Endpoint::Completions, "prompt", "0", 131_072, true);
        check(Endpoint::Embeddings, "input", "0", 131_072, true);
        check(Endpoint::Embeddings, "input", r#""a""#, 2048, true);
        check(Endpoint::OllamaEmbed, "input", "0", 131_072, true);
        check(Endpoint::Detokenize, "tokens", "0", 131_072, true);
        check(Endpoint::Detokenize, "tokens", "0", 1 << 21, false);
        check(Endpoint::Responses, "input", "{}", 65_536, false);
        check(Endpoint::Chat, "messages", "{}", 65_536, false);
        check(Endpoint::OllamaGenerate, "prompt", "0", 65_536, false);
    }
}
