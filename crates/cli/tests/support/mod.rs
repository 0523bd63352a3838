//! The program as these tests start it: over a store of its own and without a network, also in a terminal.
//!
//! [`terminal`] is a pseudo-terminal with what a user sees and types.

#![allow(dead_code, reason = "every test file is a crate of its own and uses a part of this")]

#[cfg(unix)]
pub(crate) mod terminal;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
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

/// Returns the library of ONNX Runtime of the prepared store.
pub(crate) fn library() -> PathBuf {
    let store = Store::open(None).unwrap_or_else(|error| panic!("{error}"));
    let library = runtimes::core_library(&store).unwrap_or_else(|error| panic!("{error}"));
    library.unwrap_or_else(|| panic!("no ONNX Runtime: run `cargo xtask test` once"))
}
