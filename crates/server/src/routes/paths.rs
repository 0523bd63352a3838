//! Alternative spellings of the API's paths. Clients derive them from a base URL with or without `/v1`.

use axum::{
    extract::Request,
    http::{Uri, uri::PathAndQuery},
    middleware::Next,
    response::Response,
};

/// Endpoints under `/v1` that are also available without it.
const BARE: [&str; 9] = [
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/rerank",
    "/answer",
    "/fill",
    "/models",
    "/responses",
    "/messages",
];

/// Paths of the reports about the server itself, which are answered whatever its clients do.
const REPORTS: [&str; 2] = ["/health", "/metrics"];

/// Returns true if a path, in any of its spellings, is that of a report about the server itself.
pub(crate) fn is_report(path: &str) -> bool {
    REPORTS.contains(&canonical(path).as_str())
}

/// Rewrites the path of each request to its spelling in the route table.
pub(crate) async fn normalise(mut request: Request, next: Next) -> Response {
    if let Some(uri) = canonical_uri(request.uri()) {
        *request.uri_mut() = uri;
    }
    next.run(request).await
}

/// Returns the URI with the canonical path, or `None` if the path is already canonical.
fn canonical_uri(uri: &Uri) -> Option<Uri> {
    let path = canonical(uri.path());
    if path == uri.path() {
        return None;
    }
    let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{path}{query}")).ok()?);
    Uri::from_parts(parts).ok()
}

fn canonical(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let path = format!("/{}", parts.join("/"));
    let path = match path.strip_prefix("/api/v1/") {
        Some(rest) => format!("/v1/{rest}"),
        None => path,
    };
    let is_below =
        |bare: &&str| path.strip_prefix(*bare).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    match path.as_str() {
        "/v1/health" => "/health".to_owned(),
        _ if BARE.iter().any(is_below) => format!("/v1{path}"),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_spellings_lead_to_the_same_path() {
        let check = |path: &str, expect: &str| assert_eq!(canonical(path), expect);
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
        check("/api/chat", "/api/chat");
        check("/v1/health", "/health");
        assert!(is_report("/v1/health") && is_report("/metrics/") && !is_report("/v1/models"));
        let uri: Uri = "/v1/models/?limit=3".parse().unwrap();
        assert_eq!(canonical_uri(&uri).unwrap(), "/v1/models?limit=3");
        assert_eq!(canonical_uri(&"/health".parse().unwrap()), None);
    }
}
