//! ONNX Runtime sends and stores no telemetry: with an empty home folder it writes nothing there and opens no
//! connection.
//!
//! The test starts itself again as a child process whose home folder is empty and whose proxy is a socket of the
//! parent.

#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    env, fs,
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use narthex_engine::executor::LogitRows;
use narthex_spec::Scheme;
use support::{Package, library, prompt, runtime, step};

const CHILD: &str = "NARTHEX_TEST_CHILD";

/// Time for which the child watches for sockets.
const PATIENCE: Duration = Duration::from_secs(2);

#[test]
fn no_telemetry_is_written_or_sent() {
    if env::var_os(CHILD).is_some() {
        return child();
    }
    let home = tempfile::tempdir().unwrap();
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "no_telemetry_is_written_or_sent", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1").env("HOME", home.path()).env("ORT_DYLIB_PATH", library());
    for name in
        ["XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "ORT_DISABLE_TELEMETRY"]
    {
        command.env_remove(name);
    }
    for name in ["https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(name, &address);
    }
    let store = tempfile::tempdir().unwrap();
    let output = command.env("NARTHEX_HOME", store.path()).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(listing(home.path()), Vec::<String>::new());
    let called = proxy.accept().map(|(_, from)| from);
    assert!(called.is_err(), "the proxy was called by {called:?}");
}

/// Loads the runtime, runs a session, and then watches for sockets of this process.
fn child() {
    let package = Package::llama(Scheme::W8);
    let mut executor = package.executor();
    step(&mut executor, &[(0, 0, &prompt(1, 20), LogitRows::Last)]).unwrap();
    assert_eq!(runtime().library(), narthex_files::canonicalize(&library()).unwrap());
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        assert_eq!(sockets(), Vec::<String>::new());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the open sockets of this process.
fn sockets() -> Vec<String> {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    targets.map(|path| path.display().to_string()).filter(|path| path.starts_with("socket:")).collect()
}

/// Returns every file and folder below `folder`.
fn listing(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        found.push(entry.path().display().to_string());
        if entry.path().is_dir() {
            found.extend(listing(&entry.path()));
        }
    }
    found
}
