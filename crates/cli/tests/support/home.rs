//! A folder of a user, with models and a store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use narthex_testkit::checkpoint::tiny_llama;
use tempfile::TempDir;

use super::{copy, offline, with_pip, with_runtime, write_pip};

/// A folder with models, and a store that has their imports.
pub(crate) struct Home {
    folder: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        // The length of the path is part of the snapshots.
        let folder = tempfile::Builder::new().prefix("nx").tempdir_in("/tmp").unwrap();
        let home = Self { folder };
        let exports = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compile/tests/goldens/import");
        for name in ["genai-dml", "sentence", "masked", "answers", "reranker"] {
            copy(&exports.join(name), &home.path(name));
        }
        fs::write(home.path("context.txt"), "w1 w2 w3 w4").unwrap();
        fs::write(home.path("tiny.gguf"), tiny_llama(7).to_bytes()).unwrap();
        fs::create_dir(home.path("programs")).unwrap();
        for arguments in
            ["genai-dml", "sentence --name tiny --file onnx/model.onnx", "masked", "answers", "reranker"]
        {
            // Without ONNX Runtime, an import is accepted without its run.
            home.run(
                &mut home.offline(&["import"].into_iter().chain(arguments.split(' ')).collect::<Vec<_>>()),
            );
        }
        home
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn offline(&self, words: &[&str]) -> Command {
        self.prepared(offline(&self.path("store"), words))
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        self.prepared(with_runtime(&self.path("store"), words))
    }

    fn prepared(&self, mut command: Command) -> Command {
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.path("programs").display()));
        command.current_dir(self.folder.path()).env("HOME", self.folder.path());
        for name in ["XDG_CONFIG_HOME", "NARTHEX_API_KEY", "RUST_LOG", "HF_TOKEN"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command with network, whose pip notes its start in the file `started` and never ends.
    pub(crate) fn online(&self, words: &[&str]) -> Command {
        let program = "import os, sys, time\nif '--version' not in sys.argv or 'doctor' in os.environ:\n    \
                       open('started', 'w').close()\n    time.sleep(120)\n";
        write_pip(self.folder.path(), program);
        self.prepared(with_pip(&self.path("store"), self.folder.path(), words))
    }

    /// Writes a Python program that is found before others of its name.
    pub(crate) fn add_program(&self, name: &str, program: &str) {
        let file = self.path("programs").join(name);
        fs::write(&file, format!("#!/usr/bin/env python3\n{program}")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[track_caller]
    pub(crate) fn run(&self, command: &mut Command) {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
