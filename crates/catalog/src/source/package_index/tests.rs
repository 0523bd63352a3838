//! Downloads from a local server in place of a package index.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use narthex_spec::{
    Sha256,
    progress::{Quiet, Unit},
};
use narthex_testkit::hub::{HubServer, Reply, Request, noise};

use super::*;
use crate::source::pip::Requirement;

/// The wheel of the tests, on a server with one package.
#[derive(Clone)]
struct Wheel {
    bytes: Vec<u8>,
}

impl Wheel {
    fn new(length: usize) -> Self {
        Self { bytes: noise(length) }
    }

    fn sha256(&self) -> Sha256 {
        Sha256::of(&self.bytes)
    }

    fn pinned(&self) -> PinnedWheel<'static> {
        let wanted = Requirement { package: "My_Package", version: "1", platform: "any" };
        PinnedWheel { wanted, sha256: self.sha256(), bytes: self.bytes.len() as u64 }
    }

    /// Answers as an index with pages in JSON.
    fn answer(&self, request: &Request) -> Reply {
        match request.path.as_str() {
            "/simple/my-package/" => {
                let digest = self.sha256();
                let page = format!(
                    r#"{{"files": [{{"filename": "p.whl", "url": "../../files/p.whl", "hashes": {{"sha256": "{digest}"}}}}]}}"#
                );
                page_of(page)
            }
            "/files/p.whl" => {
                let from = request.range_start().unwrap_or(0);
                let end = self.bytes.len();
                let reply = Reply {
                    body: self.bytes[from..].to_vec(),
                    ..Reply::status(if from > 0 { 206 } else { 200 })
                };
                reply.with("Content-Range", format!("bytes {from}-{}/{end}", end - 1))
            }
            _ => Reply::status(404),
        }
    }
}

fn page_of(text: impl Into<String>) -> Reply {
    Reply { body: text.into().into_bytes(), ..Reply::status(200) }
}

fn index(addresses: &[&str]) -> PackageIndex {
    let addresses = addresses.join(" ");
    let get = |name: &str| (name == "PIP_EXTRA_INDEX_URL").then(|| addresses.clone());
    PackageIndex::new(
        IndexSettings::new(&get, &ConfigurationTexts::default(), None),
        Duration::from_millis(1),
    )
    .unwrap()
}

fn download(index: &PackageIndex, wheel: &Wheel) -> Result<Vec<u8>, Error> {
    let folder = tempfile::tempdir().unwrap();
    let stage = Stage::start(&Quiet, "Downloading".to_owned(), Unit::Bytes, None);
    let path = index.download(&wheel.pinned(), folder.path(), &stage, &CancelFlag::new(false))?;
    Ok(fs::read(path).unwrap())
}

fn failure(index: &PackageIndex, wheel: &Wheel) -> (String, String) {
    let error = download(index, wheel).unwrap_err();
    (error.to_string(), error.hint().unwrap())
}

#[test]
fn a_wheel_is_found_by_its_digest_and_downloaded() {
    let wheel = Wheel::new(300_000);
    let honest = wheel.clone();
    let server = HubServer::start(move |request| honest.answer(request));
    let base = format!("{}/simple/", server.endpoint);
    assert_eq!(download(&index(&[&base]), &wheel).unwrap(), wheel.bytes);
    assert!(server.requests()[0].headers["accept"].contains("json"), "{:?}", server.requests()[0]);
}

#[test]
fn a_wheel_on_a_page_in_html_of_another_index_is_downloaded() {
    let wheel = Wheel::new(1000);
    let honest = wheel.clone();
    let server = HubServer::start(move |request| match request.path.as_str() {
        "/simple/my-package/" => Reply::status(301).with("Location", "/pypi/my-package/"),
        "/pypi/my-package/" => page_of(
            "<html><a href='../../files/p.whl'>p</a></html>"
                .replace("p.whl'", &format!("p.whl#sha256={}'", honest.sha256())),
        ),
        _ => honest.answer(request),
    });
    let base = format!("{}/simple", server.endpoint);
    let empty = format!("{}/empty", server.endpoint);
    assert_eq!(download(&index(&[&empty, &base]), &wheel).unwrap(), wheel.bytes);
}

#[test]
fn a_broken_download_is_continued() {
    let wheel = Wheel::new(300_000);
    let (honest, count) = (wheel.clone(), AtomicUsize::new(0));
    let server = HubServer::start(move |request| {
        let reply = honest.answer(request);
        match request.path.as_str() {
            "/files/p.whl" if count.fetch_add(1, Ordering::SeqCst) < 2 => reply.cut(100_000),
            _ => reply,
        }
    });
    let base = format!("{}/simple", server.endpoint);
    assert_eq!(download(&index(&[&base]), &wheel).unwrap(), wheel.bytes);
    let starts = server.gets("p.whl");
    assert!(starts.len() == 3 && starts[0] == 0 && starts.is_sorted() && starts[2] > 100_000, "{starts:?}");
}

#[test]
fn credentials_go_only_to_the_index() {
    let wheel = Wheel::new(1000);
    let honest = wheel.clone();
    let files = HubServer::start(move |request| honest.answer(request));
    let (honest, elsewhere) = (wheel.clone(), files.endpoint.clone());
    let server = HubServer::start(move |request| {
        let page = String::from_utf8(honest.answer(request).body).unwrap();
        page_of(page.replace("../..", &elsewhere))
    });
    let base = server.endpoint.replace("http://", "http://user:p%40ss@");
    assert_eq!(download(&index(&[&format!("{base}/simple")]), &wheel).unwrap(), wheel.bytes);
    let basic = format!("Basic {}", BASE64_STANDARD.encode("user:p@ss"));
    assert_eq!(server.requests()[0].headers["authorization"], basic);
    assert!(!files.requests()[0].headers.contains_key("authorization"));
}

#[test]
fn failures_name_the_host_and_the_next_step() {
    let wheel = Wheel::new(1000);
    let check = |answer: fn(&Wheel, &Request) -> Reply, message: &str, hint: &str| {
        let honest = wheel.clone();
        let server = HubServer::start(move |request| answer(&honest, request));
        let host = server.endpoint.trim_start_matches("http://").to_owned();
        let base = format!("{}/simple", server.endpoint.replace("http://", "http://u:secret@"));
        let started = Instant::now();
        let (text, next) = failure(&index(&[&base]), &wheel);
        assert!(text.contains(message) && text.contains(&host) && !text.contains("secret"), "{text}");
        assert!(next.contains(hint), "{next}");
        assert!(started.elapsed() < Duration::from_secs(30));
    };
    check(|_, _| Reply::status(404), "has no wheel of My_Package 1 for any", "PIP_INDEX_URL");
    check(|_, _| Reply::status(401), "denies access to my-package (401)", "password");
    check(|_, _| Reply::status(500), "answered 500 for my-package", "run the command again");
    check(|_, _| page_of("Please sign in"), "is malformed: expected JSON or HTML", "/simple");
    let short = |wheel: &Wheel, request: &Request| match request.path.as_str() {
        "/files/p.whl" => page_of("too short."),
        _ => wheel.answer(request),
    };
    check(short, "p.whl has 10 bytes on", "run the command again");
    let long = |wheel: &Wheel, request: &Request| {
        let mut reply = wheel.answer(request);
        reply.body.extend(vec![b' '; 5]);
        reply
    };
    check(long, "p.whl has 1005 bytes on", "another index");
    let away = |_: &Wheel, request: &Request| Reply::status(302).with("Location", request.path.clone());
    let (text, _) = {
        let server = HubServer::start(move |request| away(&Wheel::new(1), request));
        let found = failure(&index(&[&server.endpoint]), &wheel);
        assert_eq!(server.requests().len(), 11);
        found
    };
    assert!(text.contains("more than 10 redirects"), "{text}");
}

#[test]
fn malformed_addresses_are_errors_without_the_password() {
    let wheel = Wheel::new(1);
    for address in ["ftp://u:secret@h/simple", "u:secret@h", "https://"] {
        let (text, hint) = failure(&index(&[address]), &wheel);
        assert!(text.contains("malformed") && !text.contains("secret"), "{text}");
        assert!(hint.contains("PIP_INDEX_URL"), "{hint}");
    }
}

#[test]
fn the_proxy_of_pip_is_used_and_named() {
    let get = |name: &str| match name {
        "PIP_INDEX_URL" => Some("http://index.invalid/simple".to_owned()),
        "PIP_PROXY" => Some("http://127.0.0.1:9".to_owned()),
        _ => None,
    };
    let settings = IndexSettings::new(&get, &ConfigurationTexts::default(), None);
    let index = PackageIndex::new(settings, Duration::from_millis(1)).unwrap();
    let (text, hint) = failure(&index, &Wheel::new(1));
    assert!(
        text.starts_with("cannot reach index.invalid through the proxy 127.0.0.1:9 (PIP_PROXY)"),
        "{text}"
    );
    assert!(hint.contains("PIP_PROXY"), "{hint}");
}
