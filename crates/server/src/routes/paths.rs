//! Alternative spellings of the API's paths. Clients derive them from a base URL with or without `/v1`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{Uri, uri::PathAndQuery},
    middleware::Next,
    response::Response,
};

use super::openapi::Operation;

/// Spellings of the paths of the route table, and the paths with reports about the server.
pub(super) struct Paths {
    /// Paths under `/v1` that are also available without it, up to their first parameter.
    bare: Vec<&'static str>,
    reports: Vec<&'static str>,
}

impl Paths {
    /// Creates the spellings of these operations.
    pub(super) fn new(operations: &[Operation]) -> Self {
        let paths = operations.iter().filter_map(|operation| operation.path.strip_prefix("/v1"));
        let reports = operations.iter().filter(|operation| operation.is_report);
        Self {
            bare: paths.filter_map(|path| path.split("/{").next()).collect(),
            reports: reports.map(|operation| operation.path).collect(),
        }
    }

    /// Returns true if a path, in any of its spellings, is that of a report about the server itself.
    pub(super) fn is_report(&self, path: &str) -> bool {
        self.reports.contains(&self.canonical(path).as_str())
    }

    /// Returns the URI with the canonical path, or `None` if the path is already canonical.
    fn canonical_uri(&self, uri: &Uri) -> Option<Uri> {
        let path = self.canonical(uri.path());
        if path == uri.path() {
            return None;
        }
        let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(format!("{path}{query}")).ok()?);
        Uri::from_parts(parts).ok()
    }

    /// Returns the spelling of a path in the route table.
    fn canonical(&self, path: &str) -> String {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let path = format!("/{}", parts.join("/"));
        let path = match path.strip_prefix("/api/v1/") {
            Some(rest) => format!("/v1/{rest}"),
            None => path,
        };
        match path.as_str() {
            "/v1/health" => "/health".to_owned(),
            _ if self.bare.iter().any(|bare| is_at_or_below(&path, bare)) => format!("/v1{path}"),
            _ => path,
        }
    }
}

fn is_at_or_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Rewrites the path of each request to its spelling in the route table.
pub(super) async fn normalise(State(paths): State<Arc<Paths>>, mut request: Request, next: Next) -> Response {
    if let Some(uri) = paths.canonical_uri(request.uri()) {
        *request.uri_mut() = uri;
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_spellings_lead_to_the_same_path() {
        let paths = Paths::new(&super::super::operations());
        let check = |path: &str, expect: &str| assert_eq!(paths.canonical(path), expect);
        check("/", "/");
        check("/v1/chat/completions", "/v1/chat/completions");
        check("/v1/chat/completions/", "/v1/chat/completions");
        check("//v1//chat/completions", "/v1/chat/completions");
        check("/chat/completions", "/v1/chat/completions");
        check("/api/v1/models/smollm2:135m", "/v1/models/smollm2:135m");
        check("/models/hf:a/b", "/v1/models/hf:a/b");
        check("/modelsx", "/modelsx");
        check("/rerank", "/v1/rerank");
        check("/fill", "/v1/fill");
        check("/messages/count_tokens", "/v1/messages/count_tokens");
        check("/responses/resp_1", "/v1/responses/resp_1");
        check("/api/chat", "/api/chat");
        check("/v1/health", "/health");
        assert!(
            paths.is_report("/v1/health") && paths.is_report("/metrics/") && !paths.is_report("/v1/models")
        );
        let uri: Uri = "/v1/models/?limit=3".parse().unwrap();
        assert_eq!(paths.canonical_uri(&uri).unwrap(), "/v1/models?limit=3");
        assert_eq!(paths.canonical_uri(&"/health".parse().unwrap()), None);
    }
}
