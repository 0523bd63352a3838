//! Requests to the hub: the addresses of its API, metadata, and errors by status.

use std::time::Duration;

use ureq::{Body, http::Response};

use super::{
    HubOptions,
    reference::{encode_component, encode_path},
};
use crate::{
    error::HubError,
    source::http::{Answer, HttpClient, Method, Origin, header},
};

/// An HTTP client for one hub.
pub(super) struct Client {
    http: HttpClient,
    endpoint: String,
}

/// Metadata of a file on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileMetadata {
    /// ETag, as the hub sends it.
    pub(super) etag: Option<String>,
    /// Size in bytes.
    pub(super) bytes: Option<u64>,
}

impl Client {
    pub(super) fn new(options: &HubOptions) -> Result<Self, HubError> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        let origin =
            Origin::of(&endpoint).ok_or_else(|| HubError::BadEndpoint { endpoint: endpoint.clone() })?;
        if !options.token.as_ref().is_none_or(|token| token.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(HubError::BadToken);
        }
        let authorization = options.token.as_ref().map(|token| format!("Bearer {token}"));
        let http = HttpClient::new(origin, authorization, None, None)?;
        Ok(Self { http, endpoint })
    }

    pub(super) fn listing_url(&self, repo: &str, revision: &str) -> String {
        format!(
            "{}/api/models/{}/revision/{}?blobs=true",
            self.endpoint,
            encode_path(repo),
            encode_component(revision)
        )
    }

    pub(super) fn file_url(&self, repo: &str, commit: &str, name: &str) -> String {
        format!(
            "{}/{}/resolve/{}/{}",
            self.endpoint,
            encode_path(repo),
            encode_component(commit),
            encode_path(name)
        )
    }

    /// Returns a whole response of at most `limit` bytes.
    pub(super) fn get_small(&self, repo: &str, url: &str, limit: u64) -> Result<Vec<u8>, HubError> {
        let mut answer = self.send(Method::Get { from: 0 }, url, repo)?;
        self.expect_success(&answer.response, repo, repo)?;
        answer.read(repo, limit)?.ok_or_else(|| {
            let reason = format!("it is longer than {limit} bytes");
            HubError::BadAnswer { repo: repo.to_owned(), reason }
        })
    }

    /// Returns a file's metadata.
    pub(super) fn metadata(&self, repo: &str, url: &str, name: &str) -> Result<FileMetadata, HubError> {
        let Answer { response, .. } = self.send(Method::Head, url, name)?;
        let redirected = response.status().is_redirection();
        if !redirected {
            self.expect_success(&response, repo, name)?;
        }
        let headers = response.headers();
        let etag = header(headers, "x-linked-etag").or_else(|| header(headers, "etag"));
        // The length of a redirect's own response is not that of the file.
        let length = if redirected { None } else { header(headers, "content-length") };
        let bytes = header(headers, "x-linked-size").or(length).and_then(|text| text.trim().parse().ok());
        Ok(FileMetadata { etag: etag.map(str::to_owned), bytes })
    }

    /// Requests a file, starting at byte `from`.
    pub(super) fn bytes_from(
        &self,
        repo: &str,
        url: &str,
        name: &str,
        from: u64,
    ) -> Result<Response<Body>, HubError> {
        let Answer { response, .. } = self.send(Method::Get { from }, url, name)?;
        if response.status().as_u16() != 416 {
            self.expect_success(&response, repo, name)?;
        }
        Ok(response)
    }

    /// Requests a file's first bytes. A server without support for ranges sends more.
    pub(super) fn first_bytes(
        &self,
        repo: &str,
        url: &str,
        name: &str,
        length: u64,
    ) -> Result<Response<Body>, HubError> {
        let Answer { response, .. } = self.send(Method::Begin { length }, url, name)?;
        self.expect_success(&response, repo, name)?;
        Ok(response)
    }

    fn send(&self, method: Method, url: &str, what: &str) -> Result<Answer, HubError> {
        Ok(self.http.send(method, url, None, what)?)
    }

    fn expect_success(&self, response: &Response<Body>, repo: &str, what: &str) -> Result<(), HubError> {
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let code = header(response.headers(), "x-error-code").unwrap_or("");
        let what = if what == repo { repo.to_owned() } else { format!("{what} in {repo}") };
        Err(match (status.as_u16(), code) {
            (404, _) | (401 | 403, "RepoNotFound" | "RevisionNotFound" | "EntryNotFound") => {
                HubError::NotFound { what }
            }
            (status @ (401 | 403), _) => HubError::Refused {
                repo: repo.to_owned(),
                status,
                page: format!("{}/{}", self.endpoint, encode_path(repo)),
                had_token: self.http.has_credential(),
            },
            (status, _) => {
                let wait =
                    header(response.headers(), "retry-after").and_then(|text| text.trim().parse().ok());
                HubError::Status { status, what, retry_after: wait.map(Duration::from_secs) }
            }
        })
    }
}
