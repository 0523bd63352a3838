//! The hub's downloader with a local server that drops connections, sends wrong data and refuses requests.
#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use narthex_catalog::{
    CancelFlag, Error, ErrorKind,
    error::{ConnectionError, HubError},
    index::{HubSource, TokenizerFiles},
    network::Network,
    source::hub::{Hub, HubOptions, RepoSummary, Snapshot},
};
use narthex_spec::{Progress, progress::Quiet};
use narthex_testkit::hub::{COMMIT, HubServer, Reply, Repo, Request, noise};

const WEIGHTS: &str = "model.safetensors";

fn repo() -> Repo {
    Repo::new(&[
        ("config.json", b"{}"),
        (WEIGHTS, &noise(300_000)),
        ("tokenizer.json", b"{}"),
        ("README.md", b"no"),
        ("onnx/model.onnx", b"no"),
    ])
}

fn source() -> HubSource {
    HubSource {
        repo: "owner/tiny".to_owned(),
        revision: "main".to_owned(),
        files: Vec::new(),
        tokenizer: None,
    }
}

fn options(endpoint: &str, cache: &Path) -> HubOptions {
    HubOptions {
        endpoint: endpoint.to_owned(),
        token: None,
        cache: cache.to_path_buf(),
        backoff: Duration::from_millis(1),
        network: Network::Allowed,
    }
}

fn pull(endpoint: &str, cache: &Path) -> Result<Snapshot, Error> {
    Hub::new(options(endpoint, cache))?.snapshot(&source(), &Quiet, &CancelFlag::new(false))
}

fn blobs(cache: &Path) -> PathBuf {
    cache.join("models--owner--tiny/blobs")
}

fn partial(cache: &Path, repo: &Repo) -> PathBuf {
    blobs(cache).join(format!("{}.incomplete", Repo::etag(WEIGHTS, &repo.files[WEIGHTS])))
}

/// Starts a server that answers correctly, except that `twist` changes the answers to requests for the weights' bytes,
/// numbered from 0.
fn server_with(
    repo: &Repo,
    twist: impl Fn(usize, &Request, Reply) -> Reply + Send + Sync + 'static,
) -> HubServer {
    let (repo, count) = (repo.clone(), AtomicUsize::new(0));
    HubServer::start(move |request| {
        let honest = repo.answer(request);
        if !request.is("GET", WEIGHTS) {
            return honest;
        }
        twist(count.fetch_add(1, Ordering::SeqCst), request, honest)
    })
}

fn hub_error(result: Result<Snapshot, Error>) -> HubError {
    match result {
        Err(Error::Hub(error)) => error,
        other => panic!("expected an error of the hub, got {other:?}"),
    }
}

#[test]
fn a_snapshot_has_the_standard_layout_and_is_not_fetched_twice() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let honest = repo.clone();
    let server = HubServer::start(move |request| honest.answer(request));
    let snapshot = pull(&server.endpoint, cache.path()).unwrap();
    let root = cache.path().join("models--owner--tiny");
    assert_eq!(snapshot.path, root.join("snapshots").join(COMMIT));
    assert_eq!(snapshot.license.as_deref(), Some("apache-2.0"));
    assert_eq!(snapshot.digests.keys().collect::<Vec<_>>(), ["config.json", WEIGHTS, "tokenizer.json"]);
    let etag = Repo::etag(WEIGHTS, &repo.files[WEIGHTS]);
    assert_eq!(snapshot.digests[WEIGHTS].to_string(), etag);
    assert_eq!(fs::read(snapshot.path.join(WEIGHTS)).unwrap(), repo.files[WEIGHTS]);
    assert_eq!(fs::read_to_string(root.join("refs/main")).unwrap(), COMMIT);
    if cfg!(unix) {
        let link = fs::read_link(snapshot.path.join(WEIGHTS)).unwrap();
        assert_eq!(link, Path::new("../../blobs").join(etag));
    }
    assert!(!snapshot.path.join("README.md").exists());
    assert_eq!(pull(&server.endpoint, cache.path()).unwrap(), snapshot);
    assert_eq!(server.gets(WEIGHTS), [0]);
}

#[test]
fn files_that_other_tools_downloaded_are_found() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    fs::create_dir_all(blobs(cache.path())).unwrap();
    let etag = Repo::etag(WEIGHTS, &repo.files[WEIGHTS]);
    fs::write(blobs(cache.path()).join(etag), &repo.files[WEIGHTS]).unwrap();
    let server = server_with(&repo, |_, _, honest| honest);
    let snapshot = pull(&server.endpoint, cache.path()).unwrap();
    assert!(snapshot.path.join(WEIGHTS).is_file());
    assert!(server.gets(WEIGHTS).is_empty());
}

#[test]
fn a_dropped_connection_is_resumed() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let server = server_with(&repo, |nth, _, honest| match nth {
        0 => honest.cut(100_000),
        1 => honest.cut(50_000),
        _ => honest,
    });
    let snapshot = pull(&server.endpoint, cache.path()).unwrap();
    assert_eq!(fs::read(snapshot.path.join(WEIGHTS)).unwrap(), repo.files[WEIGHTS]);
    assert_eq!(server.gets(WEIGHTS), [0, 100_000, 150_000]);
    assert!(!partial(cache.path(), &repo).exists());
}

#[test]
fn a_download_that_never_gets_further_gives_up_and_keeps_what_it_has() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let server = server_with(&repo, |nth, _, honest| honest.cut(if nth == 0 { 1000 } else { 0 }));
    let error = hub_error(pull(&server.endpoint, cache.path()));
    assert!(
        matches!(error, HubError::Short { .. } | HubError::Connection(ConnectionError::Broken { .. })),
        "{error}"
    );
    assert!(Error::from(error).hint().unwrap().contains("continues where it stopped"));
    assert_eq!(fs::metadata(partial(cache.path(), &repo)).unwrap().len(), 1000);
}

#[test]
fn an_earlier_runs_half_is_resumed() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    fs::create_dir_all(blobs(cache.path())).unwrap();
    fs::write(partial(cache.path(), &repo), &repo.files[WEIGHTS][..123_456]).unwrap();
    let server = server_with(&repo, |_, _, honest| honest);
    let snapshot = pull(&server.endpoint, cache.path()).unwrap();
    assert_eq!(fs::read(snapshot.path.join(WEIGHTS)).unwrap(), repo.files[WEIGHTS]);
    assert_eq!(server.gets(WEIGHTS), [123_456]);
}

#[test]
fn a_damaged_half_is_fetched_anew_once() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    fs::create_dir_all(blobs(cache.path())).unwrap();
    fs::write(partial(cache.path(), &repo), vec![7; 200_000]).unwrap();
    let server = server_with(&repo, |_, _, honest| honest);
    let snapshot = pull(&server.endpoint, cache.path()).unwrap();
    assert_eq!(fs::read(snapshot.path.join(WEIGHTS)).unwrap(), repo.files[WEIGHTS]);
    assert_eq!(server.gets(WEIGHTS), [200_000, 0]);
}

#[test]
fn a_server_without_ranges_is_read_from_the_start() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let whole = repo.files[WEIGHTS].clone();
    let server = server_with(&repo, move |nth, _, honest| match nth {
        0 => honest.cut(100_000),
        _ => Reply { status: 200, body: whole.clone(), ..Reply::default() },
    });
    let snapshot = pull(&server.endpoint, cache.path()).unwrap();
    assert_eq!(fs::read(snapshot.path.join(WEIGHTS)).unwrap(), repo.files[WEIGHTS]);
    assert_eq!(server.gets(WEIGHTS), [0, 100_000]);
}

#[test]
fn a_range_that_starts_elsewhere_is_not_joined_on() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let server = server_with(&repo, |nth, _, honest| match nth {
        0 => honest.cut(100_000),
        1 => honest.with("Content-Range", "bytes 5-299999/300000"),
        _ => honest,
    });
    let snapshot = pull(&server.endpoint, cache.path()).unwrap();
    assert_eq!(fs::read(snapshot.path.join(WEIGHTS)).unwrap(), repo.files[WEIGHTS]);
}

#[test]
fn more_bytes_than_promised_are_refused_and_deleted() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let honest = repo.clone();
    let server = HubServer::start(move |request| {
        let reply = honest.answer(request);
        if request.path.ends_with(WEIGHTS) { reply.with("X-Linked-Size", "1000") } else { reply }
    });
    let error = hub_error(pull(&server.endpoint, cache.path()));
    assert!(matches!(error, HubError::Long { expected: 1000, .. }), "{error}");
    assert!(!partial(cache.path(), &repo).exists());
}

#[test]
fn fewer_bytes_than_promised_are_no_file() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let honest = repo.clone();
    let server = HubServer::start(move |request| {
        let reply = honest.answer(request);
        let lie = request.path.ends_with(WEIGHTS);
        if lie { reply.with("X-Linked-Size", "400000").without("Content-Range") } else { reply }
    });
    let error = hub_error(pull(&server.endpoint, cache.path()));
    assert!(matches!(error, HubError::Short { expected: 400_000, .. }), "{error}");
    assert!(!blobs(cache.path()).join(Repo::etag(WEIGHTS, &repo.files[WEIGHTS])).exists());
}

#[test]
fn wrong_bytes_are_refused_and_deleted() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let server = server_with(&repo, |_, _, mut honest| {
        honest.body[100] ^= 1;
        honest
    });
    let error = hub_error(pull(&server.endpoint, cache.path()));
    assert!(matches!(error, HubError::WrongHash { resumed: false, .. }), "{error}");
    assert_eq!(server.gets(WEIGHTS), [0], "wrong bytes are not asked for again");
    let left: Vec<_> =
        fs::read_dir(blobs(cache.path())).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.len(), 1, "only config.json's blob is left: {left:?}");
}

#[test]
fn a_file_that_changes_between_attempts_is_begun_anew() {
    let cache = tempfile::tempdir().unwrap();
    let (old, new) = (
        repo(),
        Repo::new(&[("config.json", b"{}"), ("tokenizer.json", b"{}"), (WEIGHTS, &noise(200_000)[1..])]),
    );
    let (before, after) = (old.clone(), new.clone());
    let changed = AtomicUsize::new(0);
    let server = HubServer::start(move |request| {
        if changed.load(Ordering::SeqCst) > 0 {
            return after.answer(request);
        }
        let reply = before.answer(request);
        if !request.is("GET", WEIGHTS) {
            return reply;
        }
        changed.store(1, Ordering::SeqCst);
        reply.cut(100_000)
    });
    let snapshot = pull(&server.endpoint, cache.path()).unwrap();
    assert_eq!(fs::read(snapshot.path.join(WEIGHTS)).unwrap(), new.files[WEIGHTS]);
    assert_eq!(server.gets(WEIGHTS), [0, 0]);
    assert!(!partial(cache.path(), &old).exists(), "the old version's half is gone");
}

#[test]
fn a_change_between_promise_and_bytes_is_noticed() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let server = server_with(&repo, |nth, _, honest| match nth {
        0 => honest.with("X-Linked-Etag", "\"other\""),
        _ => honest,
    });
    let snapshot = pull(&server.endpoint, cache.path()).unwrap();
    assert_eq!(fs::read(snapshot.path.join(WEIGHTS)).unwrap(), repo.files[WEIGHTS]);
    assert_eq!(server.gets(WEIGHTS).len(), 2);
}

#[test]
fn busy_servers_are_asked_again() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let honest = repo.clone();
    let count = AtomicUsize::new(0);
    // The listing fails twice, the metadata of the first file once, the bytes of two files once each.
    let server = HubServer::start(move |request| match count.fetch_add(1, Ordering::SeqCst) {
        0 | 3 => Reply::status(503).with("Retry-After", "0"),
        1 | 5 => Reply::status(429),
        9 => Reply::status(502),
        _ => honest.answer(request),
    });
    let snapshot = pull(&server.endpoint, cache.path()).unwrap();
    assert_eq!(fs::read(snapshot.path.join(WEIGHTS)).unwrap(), repo.files[WEIGHTS]);
}

#[test]
fn a_server_that_stays_broken_is_given_up() {
    let cache = tempfile::tempdir().unwrap();
    let server = HubServer::start(|_| Reply::status(500));
    let error = hub_error(pull(&server.endpoint, cache.path()));
    assert!(matches!(error, HubError::Status { status: 500, .. }), "{error}");
    assert_eq!(server.requests().len(), 5);
}

#[test]
fn refusals_are_told_apart() {
    let check = |reply: Reply, kind: ErrorKind, text: &str, hint: &str| {
        let cache = tempfile::tempdir().unwrap();
        let server = HubServer::start(move |_| reply.clone());
        let error = pull(&server.endpoint, cache.path()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
        assert!(error.hint().unwrap().contains(hint), "{:?}", error.hint());
        assert_eq!(server.requests().len(), 1, "a refusal is not asked for again");
    };
    check(Reply::status(404), ErrorKind::NotFound, "no owner/tiny", "check owner");
    check(
        Reply::status(401).with("X-Error-Code", "RepoNotFound"),
        ErrorKind::NotFound,
        "no owner/tiny",
        "HF_TOKEN",
    );
    check(Reply::status(401), ErrorKind::Fetch, "gated or private", "accept the licence");
    check(
        Reply::status(403).with("X-Error-Code", "GatedRepo"),
        ErrorKind::Fetch,
        "gated",
        "/owner/tiny, sign in",
    );
}

#[test]
fn a_gated_file_names_the_models_page() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let server = HubServer::start(move |request| {
        if request.path.starts_with("/api/") { repo.answer(request) } else { Reply::status(403) }
    });
    let error = pull(&server.endpoint, cache.path()).unwrap_err();
    assert!(error.hint().unwrap().contains(&format!("{}/owner/tiny", server.endpoint)), "{:?}", error.hint());
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let storage = {
        let repo = repo.clone();
        HubServer::start(move |request| repo.answer(request))
    };
    let hub = {
        let (repo, storage) = (repo.clone(), storage.endpoint.clone());
        HubServer::start(move |request| {
            let reply = repo.answer(request);
            if !request.path.ends_with(WEIGHTS) {
                return reply;
            }
            Reply { status: 302, body: Vec::new(), ..reply }
                .with("Location", format!("{storage}{}", request.path))
        })
    };
    let options = HubOptions { token: Some("hf_secret".to_owned()), ..options(&hub.endpoint, cache.path()) };
    let snapshot = Hub::new(options).unwrap().snapshot(&source(), &Quiet, &CancelFlag::new(false)).unwrap();
    assert_eq!(fs::read(snapshot.path.join(WEIGHTS)).unwrap(), repo.files[WEIGHTS]);
    let token = |request: &Request| request.headers.get("authorization").cloned();
    assert!(hub.requests().iter().all(|request| token(request).as_deref() == Some("Bearer hf_secret")));
    assert_eq!(storage.requests().len(), 1, "the promise is the hub's own");
    assert!(storage.requests().iter().all(|request| token(request).is_none()));
}

#[test]
fn a_moved_repository_is_followed_with_the_token() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let server = HubServer::start(move |request| match request.path.strip_prefix("/owner/tiny") {
        Some(rest) => Reply::status(307).with("Location", format!("/owner/moved{rest}")),
        None => repo.answer(request),
    });
    let options =
        HubOptions { token: Some("hf_secret".to_owned()), ..options(&server.endpoint, cache.path()) };
    Hub::new(options).unwrap().snapshot(&source(), &Quiet, &CancelFlag::new(false)).unwrap();
    assert!(server.requests().iter().all(|request| request.headers.contains_key("authorization")));
}

#[test]
fn endless_redirects_end() {
    let cache = tempfile::tempdir().unwrap();
    let server = HubServer::start(|request| Reply::status(302).with("Location", request.path.clone()));
    let error = hub_error(pull(&server.endpoint, cache.path()));
    assert!(matches!(error, HubError::Connection(ConnectionError::BadRedirect { .. })), "{error}");
    assert_eq!(server.requests().len(), 11);
}

#[test]
fn a_cancelled_download_stops_and_goes_on_later() {
    let cache = tempfile::tempdir().unwrap();
    let repo = Repo::new(&[("config.json", b"{}"), ("tokenizer.json", b"{}"), (WEIGHTS, &noise(3_000_000))]);
    let server = server_with(&repo, |_, _, honest| honest);
    let cancel = Arc::new(CancelFlag::new(false));
    let flag = Arc::clone(&cancel);
    let sink = move |event: Progress| {
        if matches!(event, Progress::Advanced { done, .. } if done > 10_000) {
            flag.store(true, Ordering::Relaxed);
        }
    };
    let hub = Hub::new(options(&server.endpoint, cache.path())).unwrap();
    assert!(matches!(hub.snapshot(&source(), &sink, &cancel), Err(Error::Cancelled)));
    let kept = fs::metadata(partial(cache.path(), &repo)).unwrap().len();
    assert!((10_000..3_000_000).contains(&kept), "{kept}");
    let snapshot = pull(&server.endpoint, cache.path()).unwrap();
    assert_eq!(fs::read(snapshot.path.join(WEIGHTS)).unwrap(), repo.files[WEIGHTS]);
    assert_eq!(server.gets(WEIGHTS), [0, usize::try_from(kept).unwrap()]);
}

#[test]
fn waiting_for_a_busy_server_can_be_cancelled() {
    let cache = tempfile::tempdir().unwrap();
    let server = HubServer::start(|_| Reply::status(503).with("Retry-After", "30"));
    let cancel = Arc::new(CancelFlag::new(false));
    let flag = Arc::clone(&cancel);
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        flag.store(true, Ordering::Relaxed);
    });
    let began = Instant::now();
    let result =
        Hub::new(options(&server.endpoint, cache.path())).unwrap().snapshot(&source(), &Quiet, &cancel);
    assert!(matches!(result, Err(Error::Cancelled)));
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_tokenizer_is_there_or_lent_before_the_weights_are_fetched() {
    let cache = tempfile::tempdir().unwrap();
    let mut bare = repo();
    bare.files.remove("tokenizer.json");
    let lender = Repo::new(&[("tokenizer.json", b"[1]"), ("map.json", b"[2]"), (WEIGHTS, b"no")]);
    let server = HubServer::start(move |request| {
        if request.path.contains("/lender/") { lender.answer(request) } else { bare.answer(request) }
    });
    let error = hub_error(pull(&server.endpoint, cache.path()));
    assert!(matches!(&error, HubError::NoTokenizer { repo } if repo == "owner/tiny"), "{error}");
    assert!(server.gets(WEIGHTS).is_empty());
    let files = vec!["tokenizer.json".to_owned(), "map.json".to_owned()];
    let lent = TokenizerFiles { repo: "lender/other".to_owned(), files };
    let source = HubSource { tokenizer: Some(lent), ..source() };
    let snapshot = |endpoint: &str| {
        Hub::new(options(endpoint, cache.path())).unwrap().snapshot(&source, &Quiet, &CancelFlag::new(false))
    };
    let found = snapshot(&server.endpoint).unwrap();
    assert_eq!(fs::read(found.path.join("tokenizer.json")).unwrap(), b"[1]");
    assert_eq!(fs::read(found.path.join("map.json")).unwrap(), b"[2]");
    assert_eq!(
        found.digests.keys().collect::<Vec<_>>(),
        ["config.json", "map.json", WEIGHTS, "tokenizer.json"]
    );
    let weights: Vec<Request> =
        server.requests().into_iter().filter(|request| request.is("GET", WEIGHTS)).collect();
    assert!(weights.len() == 1 && weights[0].path.contains("owner/tiny"), "{weights:?}");
    // The cache is sufficient without a network, and of the lending repository only the requested files were
    // downloaded.
    assert_eq!(snapshot("http://127.0.0.1:1").unwrap().digests, found.digests);
    assert!(!cache.path().join("models--lender--other/snapshots").join(COMMIT).join(WEIGHTS).exists());
}

#[test]
fn settings_come_without_weights() {
    let cache = tempfile::tempdir().unwrap();
    let mut repo = repo();
    repo.files.insert("modules.json".to_owned(), b"[]".to_vec());
    let server = HubServer::start(move |request| repo.answer(request));
    let settings = |endpoint: &str| {
        Hub::new(options(endpoint, cache.path())).unwrap().settings(&source(), &CancelFlag::new(false))
    };
    let folder = settings(&server.endpoint).unwrap();
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "modules.json"]);
    assert!(server.gets(WEIGHTS).is_empty());
    // An incomplete repository must not count as a complete one when the network is unavailable.
    assert!(pull("http://127.0.0.1:1", cache.path()).is_err());
    assert!(settings("http://127.0.0.1:1").is_err());
    let whole = pull(&server.endpoint, cache.path()).unwrap();
    assert_eq!(settings("http://127.0.0.1:1").unwrap(), whole.path);
}

#[test]
fn an_outline_is_settings_and_beginnings() {
    let cache = tempfile::tempdir().unwrap();
    let mut repo = repo();
    let whole = noise(3_000_000);
    repo.files.insert(WEIGHTS.to_owned(), whole.clone());
    let server = HubServer::start(move |request| repo.answer(request));
    let outline = |endpoint: &str, wanted: u64| {
        let folder = tempfile::tempdir().unwrap();
        let wanted = |name: &str, found: &[u8]| {
            assert_eq!(name, WEIGHTS);
            ((found.len() as u64) < wanted).then_some(wanted)
        };
        let hub = Hub::new(options(endpoint, cache.path())).unwrap();
        let done = hub.outline(&source(), folder.path(), &wanted, &CancelFlag::new(false));
        (folder, done)
    };
    for wanted in [10, 1_000_000] {
        let (folder, done) = outline(&server.endpoint, wanted);
        let stated = done.unwrap().unwrap();
        // The weights, and two files of two bytes each.
        let license = Some("apache-2.0".to_owned());
        assert_eq!(stated, RepoSummary { license, bytes: Some(3_000_004), gguf: None });
        let found = fs::read(folder.path().join(WEIGHTS)).unwrap();
        assert_eq!(found.len(), whole.len(), "a hole has the file's length");
        let begun = (wanted as usize).max(256 << 10);
        assert!(found[..begun] == whole[..begun] && found[begun..].iter().all(|byte| *byte == 0));
        assert_eq!(fs::read(folder.path().join("config.json")).unwrap(), b"{}");
    }
    let lengths: Vec<_> = server.requests().iter().filter_map(Request::range_length).collect();
    assert_eq!(lengths, [256 << 10, 256 << 10, 1_000_000]);
    let (folder, done) = outline("http://127.0.0.1:1", 10);
    assert!(done.unwrap().is_none() && fs::read_dir(folder.path()).unwrap().count() == 0);
}

#[test]
fn without_a_network_a_complete_snapshot_is_used() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let server = HubServer::start(move |request| repo.answer(request));
    let online = pull(&server.endpoint, cache.path()).unwrap();
    // Nothing listens on port 1.
    let notes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&notes);
    let sink = move |event: Progress| {
        if let Progress::Note(note) = event {
            seen.lock().unwrap().push(note);
        }
    };
    let hub = Hub::new(options("http://127.0.0.1:1", cache.path())).unwrap();
    let offline = hub.snapshot(&source(), &sink, &CancelFlag::new(false)).unwrap();
    assert_eq!(offline.path, online.path);
    assert_eq!(offline.digests, online.digests);
    assert!(notes.lock().unwrap()[0].contains("cannot be reached"));
    let forbidden = HubOptions { network: Network::CacheOnly, ..options(&server.endpoint, cache.path()) };
    let before = server.requests().len();
    let result = Hub::new(forbidden.clone()).unwrap().snapshot(&source(), &Quiet, &CancelFlag::new(false));
    assert_eq!(result.unwrap().path, online.path);
    let other = HubSource { repo: "owner/other".to_owned(), ..source() };
    let error = hub_error(Hub::new(forbidden).unwrap().snapshot(&other, &Quiet, &CancelFlag::new(false)));
    assert!(matches!(error, HubError::NotCached { .. }), "{error}");
    assert_eq!(server.requests().len(), before);
}

#[test]
fn without_a_network_and_a_cache_the_host_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let error = hub_error(pull("http://127.0.0.1:1", cache.path()));
    assert!(error.to_string().starts_with("cannot reach 127.0.0.1:1: "), "{error}");
}

#[test]
fn hostile_listings_are_refused() {
    let check = |listing: String, expect: &str| {
        let cache = tempfile::tempdir().unwrap();
        let server = HubServer::start(move |_| Reply {
            status: 200,
            body: listing.clone().into_bytes(),
            ..Reply::default()
        });
        let error = pull(&server.endpoint, cache.path()).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "nothing is written");
    };
    check("not json".to_owned(), "is not valid");
    check(r#"{"sha":"../../../etc/passwd","siblings":[]}"#.to_owned(), "is not a commit");
    check(
        format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"README.md"}}]}}"#),
        "no .safetensors or .gguf",
    );
    let name = r"..\\..\\evil.safetensors";
    check(format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"{name}"}}]}}"#), "would leave its folder");
}

#[test]
fn an_etag_that_is_no_file_name_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let repo = repo();
    let server = HubServer::start(move |request| {
        repo.answer(request).without("X-Linked-Etag").with("ETag", "\"../../../evil\"")
    });
    let error = hub_error(pull(&server.endpoint, cache.path()));
    assert!(error.to_string().contains("no usable ETag"), "{error}");
}

#[test]
fn two_downloads_at_once_fetch_the_bytes_once() {
    let cache = tempfile::tempdir().unwrap();
    let repo = Repo::new(&[("config.json", b"{}"), ("tokenizer.json", b"{}"), (WEIGHTS, &noise(2_000_000))]);
    let server = Arc::new(server_with(&repo, |_, _, honest| {
        thread::sleep(Duration::from_millis(50));
        honest
    }));
    let run = || {
        let (server, cache) = (Arc::clone(&server), cache.path().to_path_buf());
        thread::spawn(move || pull(&server.endpoint, &cache).unwrap())
    };
    let (first, second) = (run(), run());
    assert_eq!(first.join().unwrap(), second.join().unwrap());
    assert_eq!(server.gets(WEIGHTS), [0]);
}

#[test]
fn a_gguf_repository_gives_the_file() {
    let cache = tempfile::tempdir().unwrap();
    let repo = Repo::new(&[("q4.gguf", b"GGUF4"), ("q8.gguf", b"GGUF8"), ("config.json", b"{}")]);
    let server = HubServer::start(move |request| repo.answer(request));
    let error = pull(&server.endpoint, cache.path()).unwrap_err();
    assert!(error.hint().unwrap().contains("hf:owner/tiny/q4.gguf"), "{:?}", error.hint());
    let one = HubSource { files: vec!["q8.gguf".to_owned()], ..source() };
    let hub = Hub::new(options(&server.endpoint, cache.path())).unwrap();
    let snapshot = hub.snapshot(&one, &Quiet, &CancelFlag::new(false)).unwrap();
    assert_eq!(fs::read(snapshot.path).unwrap(), b"GGUF8");
}

#[test]
fn bad_options_are_errors() {
    let cache = tempfile::tempdir().unwrap();
    for endpoint in ["", "hub", "ftp://hub", "file:///etc"] {
        let error = hub_error(pull(endpoint, cache.path()));
        assert!(matches!(error, HubError::BadEndpoint { .. }), "{endpoint}: {error}");
    }
    let options =
        HubOptions { token: Some("a\r\nX: y".to_owned()), ..options("http://127.0.0.1:1", cache.path()) };
    assert!(matches!(Hub::new(options), Err(Error::Hub(HubError::BadToken))));
}
