//! The program as these tests start it: over a store of its own and without a network, also in a terminal.
//!
//! [`terminal`] is a pseudo-terminal with what a user sees and types, [`home`] a folder with models, and [`encoders`] has
//! the expected results of encoders.

#![allow(dead_code, reason = "each test program uses a part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

#[path = "../../../device/tests/support/encoders.rs"]
pub(crate) mod encoders;
#[cfg(unix)]
pub(crate) mod home;
#[cfg(unix)]
pub(crate) mod terminal;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use narthex_catalog::{runtimes, store::Store};

/// Returns `narthex` over the store at `home`, without a network, Python or ONNX Runtime.
pub(crate) fn offline(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command
        .args(args)
        .env("NARTHEX_HOME", home)
        .env("NARTHEX_PYTHON", "/nonexistent/python")
        .env("HF_HUB_CACHE", home)
        .env("HF_HUB_OFFLINE", "1")
        .env_remove("ORT_DYLIB_PATH")
        .stdin(Stdio::null());
    command
}

/// Returns the command of [`offline`], which also finds ONNX Runtime.
pub(crate) fn with_runtime(home: &Path, args: &[&str]) -> Command {
    let mut command = offline(home, args);
    command.env("ORT_DYLIB_PATH", library());
    command
}

/// A server that listens.
pub(crate) struct ListeningServer {
    pub(crate) process: Child,
    pub(crate) address: String,
    /// Further lines of its log. The server waits if nobody reads them.
    pub(crate) log: Box<dyn Iterator<Item = String> + Send>,
}

/// Runs a command that becomes `narthex serve`, and waits until it listens.
pub(crate) fn serve(command: &mut Command) -> ListeningServer {
    let mut process = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find(|line| line.contains("http://")).expect("the server announces its address");
    let address = line.split("http://").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    ListeningServer { process, address, log: Box::new(lines) }
}

/// Runs a command whose standard output is a pipe with a closed read end.
pub(crate) fn run_without_reader(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    child.wait_with_output().unwrap()
}

/// Writes a Python module `pip` that runs this program.
pub(crate) fn write_pip(folder: &Path, program: &str) {
    let pip = folder.join("pip");
    fs::create_dir_all(&pip).unwrap();
    fs::write(pip.join("__init__.py"), "").unwrap();
    fs::write(pip.join("__main__.py"), program).unwrap();
}

/// Returns the command of [`offline`] with a network and the module `pip` of a folder.
pub(crate) fn with_pip(home: &Path, folder: &Path, args: &[&str]) -> Command {
    let mut command = offline(home, args);
    command.env_remove("NARTHEX_PYTHON").env_remove("HF_HUB_OFFLINE").env("PYTHONPATH", folder);
    command
}

/// Copies a folder with everything in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Returns the library of ONNX Runtime of the prepared store.
pub(crate) fn library() -> PathBuf {
    let store = Store::open(None).unwrap_or_else(|error| panic!("{error}"));
    let library = runtimes::core_library(&store).unwrap_or_else(|error| panic!("{error}"));
    library.unwrap_or_else(|| panic!("no ONNX Runtime: run `cargo xtask test` once"))
}
