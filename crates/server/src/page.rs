//! The page for browsers at `/`, whose files the program contains.
//!
//! The sources are in the folder `page` of the repository, and `npm run build` there writes the files of
//! `crates/server/page`. `cargo xtask test --only page` fails if they differ. The files name no other host, and the
//! policy in the headers lets the page load nothing else.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
    sync::LazyLock,
};

use axum::{
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode, Uri,
        header::{
            ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
            ETAG, IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
};
use flate2::{Compression, write::GzEncoder};

use crate::{app::App, error::ApiError, keys};

/// Answer of `GET /` for clients other than browsers.
const LINE: &str = "Narthex is running";

/// Policy of the page, which may load its own files and answers of this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      media-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers that keep pages of other origins from reading or controlling this page.
const ISOLATION: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

static INDEX: LazyLock<PageFile> =
    LazyLock::new(|| PageFile::new("text/html; charset=utf-8", include_bytes!("../page/index.html")));
static SCRIPT: LazyLock<PageFile> =
    LazyLock::new(|| PageFile::new("text/javascript; charset=utf-8", include_bytes!("../page/app.js")));
static STYLE: LazyLock<PageFile> =
    LazyLock::new(|| PageFile::new("text/css; charset=utf-8", include_bytes!("../page/app.css")));
static ICON: LazyLock<PageFile> =
    LazyLock::new(|| PageFile::new("image/svg+xml", include_bytes!("../page/icon.svg")));

/// Returns the page to a browser. Other clients get a line, if they have a required key.
pub(crate) async fn root(app: App, uri: Uri, headers: HeaderMap) -> Result<Response, ApiError> {
    if accepts(&headers, "text/html") {
        let mut response = INDEX.answer(&uri, &headers);
        response.headers_mut().append(VARY, HeaderValue::from_static("accept"));
        return Ok(response);
    }
    if !app.meter.caller.is_known() {
        return Err(keys::key_missing());
    }
    Ok(([(VARY, "accept")], LINE).into_response())
}

/// Returns the script of the page.
pub(crate) async fn script(uri: Uri, headers: HeaderMap) -> Response {
    SCRIPT.answer(&uri, &headers)
}

/// Returns the styles of the page.
pub(crate) async fn style(uri: Uri, headers: HeaderMap) -> Response {
    STYLE.answer(&uri, &headers)
}

/// Returns the icon of the page.
pub(crate) async fn icon(uri: Uri, headers: HeaderMap) -> Response {
    ICON.answer(&uri, &headers)
}

/// Returns true if `Accept` lists this media type with a weight other than 0.
fn accepts(headers: &HeaderMap, media: &str) -> bool {
    listed(headers, &ACCEPT, media)
}

/// Returns true if a header lists this word with a weight other than 0.
fn listed(headers: &HeaderMap, header: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|item| {
        let mut parts = item.split(';').map(str::trim);
        let is_word = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(word));
        let weight = parts.find_map(|part| part.strip_prefix("q="));
        is_word && weight.is_none_or(|weight| weight.parse().is_ok_and(|weight: f32| weight > 0.0))
    })
}

/// A file of the page.
struct PageFile {
    media: &'static str,
    content: &'static [u8],
    compressed: Vec<u8>,
    /// Value of `ETag`, which changes with the content.
    tag: String,
}

impl PageFile {
    fn new(media: &'static str, content: &'static [u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing to a vector cannot fail.
        let compressed = encoder.write_all(content).and_then(|()| encoder.finish()).unwrap_or_default();
        Self { media, content, compressed, tag: format!("W/\"{:016x}\"", hasher.finish()) }
    }

    /// Returns the file, or 304 if the client has it.
    fn answer(&self, uri: &Uri, headers: &HeaderMap) -> Response {
        let known = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
        let is_known = known.is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == self.tag));
        let is_compressed = listed(headers, &ACCEPT_ENCODING, "gzip") && !self.compressed.is_empty();
        let caching = if is_versioned(uri) { "public, max-age=31536000, immutable" } else { "no-cache" };
        let mut response = if is_known {
            StatusCode::NOT_MODIFIED.into_response()
        } else if is_compressed {
            ([(CONTENT_ENCODING, "gzip")], self.compressed.clone()).into_response()
        } else {
            self.content.into_response()
        };

        let headers = response.headers_mut();
        for (name, value) in ISOLATION {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(caching));
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        if let Ok(tag) = HeaderValue::from_str(&self.tag) {
            headers.insert(ETAG, tag);
        }
        response
    }
}

/// Returns true if the page of this program names a URI with its query, which is the digest of the file.
fn is_versioned(uri: &Uri) -> bool {
    let index = String::from_utf8_lossy(INDEX.content);
    uri.query().is_some() && uri.path_and_query().is_some_and(|path| index.contains(&format!("\"{path}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn browsers_are_told_from_other_clients() {
        let check = |accept: &'static str, expect: bool| {
            assert_eq!(accepts(&headers(ACCEPT, accept), "text/html"), expect, "{accept}");
        };
        check("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true);
        check("application/json, Text/HTML ; q=0.5", true);
        check("text/html;q=0", false);
        check("text/html;q=x", false);
        check("*/*", false);
        check("text/plain", false);
        check("", false);
        assert!(!accepts(&HeaderMap::new(), "text/html"));
    }

    #[test]
    fn only_the_files_of_this_version_are_kept_for_good() {
        let index = String::from_utf8_lossy(INDEX.content).into_owned();
        let (_, script) = index.split_once("src=\"").unwrap();
        let script: Uri = script.split('"').next().unwrap().parse().unwrap();
        assert_eq!(script.path(), "/page/app.js");
        assert!(is_versioned(&script));
        for other in ["/page/app.js", "/page/app.js?0000", "/", "/page/app.css?", "/?a"] {
            assert!(!is_versioned(&other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn a_known_file_is_not_sent_again() {
        let uri: Uri = "/page/app.css".parse().unwrap();
        let first = STYLE.answer(&uri, &HeaderMap::new());
        let tag = first.headers()[ETAG].clone();
        let again = STYLE.answer(&uri, &HeaderMap::from_iter([(IF_NONE_MATCH, tag)]));
        assert_eq!((first.status(), again.status()), (StatusCode::OK, StatusCode::NOT_MODIFIED));
        let zipped = STYLE.answer(&uri, &headers(ACCEPT_ENCODING, "br, gzip"));
        assert_eq!(zipped.headers()[CONTENT_ENCODING], "gzip");
        assert!(STYLE.compressed.len() < STYLE.content.len());
    }
}
