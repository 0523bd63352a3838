//! Entry points for fuzz targets: request bodies as the endpoints read them, streams of upstreams, and files for TLS. Not part of
//! the product.

use std::sync::LazyLock;

use serde_json::Value;

use crate::{
    access::host_of,
    http::tls::TlsFiles,
    routes::{self, openapi::ReadBody},
    upstream::event_filter::EventFilter,
};

/// Endpoint that reads a body.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    /// Path in the route table.
    pub path: &'static str,
    reader: ReadBody,
}

impl Endpoint {
    /// Returns every endpoint of the route table that reads a body.
    pub fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<Endpoint>> = LazyLock::new(|| {
            let operations = routes::operations().into_iter();
            operations.filter_map(|one| Some(Endpoint { path: one.path, reader: one.reader? })).collect()
        });
        &ALL
    }

    /// Reads a body up to the call of the gateway.
    ///
    /// # Errors
    /// The JSON body of the error response.
    pub fn read(self, body: &[u8]) -> Result<(), Value> {
        (self.reader)(body).map_err(|error| error.body())
    }
}

/// Returns the host in a `Host` header, if the header is well-formed.
pub fn read_host_header(header: &str) -> Option<String> {
    host_of(header)
}

/// Passes on the stream of an upstream, whole and in parts. The first byte of the input has the size of the parts, and whether the
/// chunk with token counts is hidden.
///
/// # Errors
/// The problem if the bytes for the client depend on the parts, or differ from the stream although nothing is hidden.
pub fn pass_upstream_events(input: &[u8]) -> Result<(), String> {
    let Some((&first, stream)) = input.split_first() else { return Ok(()) };
    let size = usize::from(first >> 1).max(1);
    let hides_usage = first & 1 == 1;
    let pass = |size: usize| {
        let mut filter = EventFilter::new(hides_usage);
        let mut passed: Vec<u8> = stream.chunks(size).flat_map(|part| filter.feed(part)).collect();
        passed.extend(filter.rest());
        passed
    };
    let whole = pass(stream.len().max(1));
    if pass(size) != whole {
        return Err(format!("parts of {size} bytes give other bytes"));
    }
    if !hides_usage && whole != stream {
        return Err("nothing is hidden, but the bytes differ".to_owned());
    }
    Ok(())
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

    fn read(path: &str, body: &str) -> Result<(), Value> {
        let endpoint = Endpoint::all().iter().find(|endpoint| endpoint.path == path).unwrap();
        endpoint.read(body.as_bytes())
    }

    #[test]
    fn every_endpoint_reads_its_own_body() {
        let check = |path: &str, body: &str, param: Option<&str>| {
            let found = read(path, body);
            let found =
                found.err().map(|error| error["error"]["param"].as_str().unwrap_or("none").to_owned());
            assert_eq!(found.as_deref(), param, "{path} {body}");
        };
        let messages = r#""messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]"#;
        check("/v1/chat/completions", &format!(r#"{{"model": "m", {messages}}}"#), None);
        check("/v1/chat/completions", &format!(r#"{{"model": "m", {messages}, "n": -1}}"#), Some("n"));
        check("/v1/chat/completions", r#"{"model": "m", "prompt": "a"}"#, Some("messages"));
        check("/v1/completions", r#"{"model": "m", "prompt": ["a", "b"]}"#, None);
        check("/v1/completions", r#"{"model": "m", "prompt": []}"#, Some("prompt"));
        check("/v1/embeddings", r#"{"model": "m", "input": [[1, 2], [3]]}"#, None);
        check("/v1/embeddings", r#"{"model": "m"}"#, Some("input"));
        check("/v1/embeddings", "{", Some("none"));
        check("/v1/rerank", r#"{"model": "m", "query": "a", "documents": ["b", {"text": "c"}]}"#, None);
        check("/v1/rerank", r#"{"model": "m", "query": "a"}"#, Some("documents"));
        let questions = r#""questions": [{"type": "predicate", "instructions": "b"}]"#;
        check("/v1/decisions", &format!(r#"{{"model": "m", "input": "a", {questions}}}"#), None);
        check("/v1/decisions", r#"{"model": "m", "input": "a"}"#, Some("questions"));
        let questions = r#""questions": {"b": {"type": "noul"}}"#;
        check("/v1/systemone", &format!(r#"{{"model": "m", "state": "a", {questions}}}"#), None);
        check("/v1/systemone", &format!(r#"{{"model": "m", "state": null, {questions}}}"#), Some("state"));
        check(
            "/v1/systemone",
            r#"{"model": "m", "state": "a", "questions": {"b": {}}}"#,
            Some("questions.b"),
        );
        check("/v1/answer", r#"{"model": "m", "question": "a", "context": "b"}"#, None);
        check("/v1/answer", r#"{"model": "m", "question": "a"}"#, Some("context"));
        check("/v1/fill", r#"{"model": "m", "text": "a [MASK]", "top_k": 2}"#, None);
        check("/v1/fill", r#"{"model": "m", "text": "a", "generate": 2, "rounds": 3}"#, None);
        check("/v1/fill", r#"{"model": "m", "text": "a", "generate": 2, "top_k": 3}"#, Some("top_k"));
        check("/v1/fill", r#"{"model": "m", "text": "a", "rounds": 3}"#, Some("rounds"));
        check("/v1/audio/speech", r#"{"model": "m", "input": "a"}"#, None);
        check("/v1/audio/speech", r#"{"model": "m"}"#, Some("input"));
        let part =
            |name: &str| format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\nm\r\n");
        for path in ["/v1/audio/transcriptions", "/v1/audio/translations"] {
            check(path, &[&part("file"), &part("model"), "--b--"].concat(), None);
            check(path, &[&part("file"), "--b--"].concat(), Some("model"));
            check(path, "{}", Some("none"));
        }
        check("/v1/responses", r#"{"model": "m", "input": "a"}"#, None);
        check("/v1/messages", &format!(r#"{{"model": "m", "max_tokens": 1, {messages}}}"#), None);
        check("/api/chat", r#"{"model": "m", "messages": [{"role": "user", "content": "a"}]}"#, None);
        check("/api/generate", r#"{"model": "m", "prompt": "a"}"#, None);
        check("/api/embed", r#"{"model": "m", "input": ["a"]}"#, None);
        check("/api/embeddings", r#"{"model": "m", "prompt": "a"}"#, None);
        check("/api/embeddings", r#"{"prompt": "a"}"#, Some("model"));
        check("/api/show", r#"{"name": "m", "verbose": true}"#, None);
        check("/api/create", r#"{"model": "n", "from": "m", "parameters": {"top_k": 1}}"#, None);
        check("/api/create", r#"{"model": "n"}"#, Some("from"));
        check("/api/copy", r#"{"source": "m", "destination": "n"}"#, None);
        check("/api/copy", r#"{"source": "m"}"#, Some("destination"));
        check("/v1/settings", r#"{"model": "m", "pin": true, "default": false, "add_name": "n"}"#, None);
        check("/v1/settings", r#"{"pin": true}"#, Some("model"));
        check("/api/delete", r#"{"model": "m"}"#, None);
        check("/api/delete", r#"{"model": "m", "force": true}"#, Some("force"));
        check("/api/pull", r#"{"model": "m", "stream": false}"#, None);
        check("/api/pull", r#"{"stream": false}"#, Some("model"));
        check("/v1/messages/count_tokens", &format!(r#"{{"model": "m", {messages}}}"#), None);
        check("/apply-template", &format!(r#"{{"model": "m", {messages}}}"#), None);
        check("/apply-template", r#"{"model": "m", "content": "a"}"#, Some("messages"));
        check("/tokenize", r#"{"model": "m", "content": "a"}"#, None);
        check("/detokenize", r#"{"model": "m", "tokens": [1]}"#, None);
        check("/detokenize", r#"{"model": "m"}"#, Some("tokens"));
    }

    #[test]
    fn every_endpoint_documents_its_body() {
        let document = routes::openapi::document(&routes::operations());
        for endpoint in Endpoint::all() {
            let methods = &document["paths"][endpoint.path];
            let is_documented =
                ["post", "delete"].iter().any(|method| methods[method]["requestBody"].is_object());
            assert!(is_documented, "{}: add `.body` in routes/mod.rs", endpoint.path);
        }
    }

    #[test]
    fn hosts_are_read() {
        assert_eq!(read_host_header("LOCALHOST.:80").as_deref(), Some("localhost"));
        assert_eq!(read_host_header("a b"), None);
    }

    #[test]
    fn long_lists_are_lists_of_tokens() {
        let check = |path: &str, field: &str, item: &str, items: usize, is_read: bool| {
            let list = vec![item; items].join(",");
            let body = format!(r#"{{"model": "m", "{field}": [{list}]}}"#);
            match read(path, &body) {
                Ok(()) => assert!(is_read, "{path} {item}"),
                Err(error) => {
                    assert!(!is_read && error["error"]["param"] == field, "{path} {item}: {error}");
                }
            }
        };
        check("/v1/completions", "prompt", "0", 131_072, true);
        check("/v1/embeddings", "input", "0", 131_072, true);
        check("/v1/embeddings", "input", r#""a""#, 2048, true);
        check("/api/embed", "input", "0", 131_072, true);
        check("/detokenize", "tokens", "0", 131_072, true);
        check("/detokenize", "tokens", "0", 1 << 21, false);
        check("/v1/responses", "input", "{}", 65_536, false);
        check("/v1/chat/completions", "messages", "{}", 65_536, false);
        check("/api/generate", "prompt", "0", 65_536, false);
    }
}
