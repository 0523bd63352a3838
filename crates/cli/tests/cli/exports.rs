//! `import` and `export` over tiny exports in a temporary store.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{
    path::{Path, PathBuf},
    process::Output,
};

use narthex_graph::Graph;

use crate::support::{copy, with_pip, with_runtime, write_pip};

fn exports(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../compile/tests/goldens/import").join(name)
}

/// Runs `narthex` over `home` with the runtime of the prepared store.
fn narthex(home: &Path, args: &[&str]) -> Output {
    with_runtime(home, args).output().unwrap()
}

/// Checks the exit code, and that standard output and standard error contain these texts.
fn check(home: &Path, args: &[&str], code: i32, stdout: &str, stderr: &str) -> String {
    let output = narthex(home, args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
    assert!(out.contains(stdout), "{args:?}: {stdout:?} is not in standard output:\n{out}");
    assert!(err.contains(stderr), "{args:?}: {stderr:?} is not in standard error:\n{err}");
    out.into_owned()
}

#[test]
fn exports_become_models_like_any_other() {
    let home = tempfile::tempdir().unwrap();
    let check =
        |args: &[&str], code, stdout: &str, stderr: &str| check(home.path(), args, code, stdout, stderr);
    let (chat, vectors) = (exports("genai-dml"), exports("sentence"));
    let (chat, vectors) = (chat.to_str().unwrap(), vectors.to_str().unwrap());
    check(&["import", chat], 0, "genai-dml", "Sequences are limited to");
    check(
        &["import", vectors, "--name", "tiny", "--file", "onnx/model.onnx"],
        0,
        "tiny",
        "imported tiny (f32",
    );
    check(&["list"], 0, "genai-dml", "");
    check(&["show", "genai-dml"], 0, "imported decoder, 2 layers, vocabulary 256", "");
    check(&["show", "tiny"], 0, "imported encoder, vectors of 16, vocabulary 64", "");
    let ask = ["chat", "-q", "-m", "genai-dml", "--max-tokens", "5", "--providers", "cpu", "Hello"];
    let answer = check(&ask, 0, "", "");
    assert!(!answer.trim_end().is_empty());
    assert_eq!(check(&ask, 0, "", ""), answer);
    let embedded = check(&["embed", "-m", "tiny", "--providers", "cpu", "w1 w2"], 0, "", "");
    assert!(!embedded.is_empty());
    let out = home.path().join("out");
    let out = out.to_str().unwrap();
    check(&["export", "genai-dml", out], 10, "", "an import, which is an ONNX export already");
    check(&["export", "no-such-model", out], 3, "", "no model is named");
    check(&["export", "tiny", out, "--format", "toaster"], 2, "", "[possible values: genai, quark]");
    assert!(!Path::new(out).exists());
    check(&["rm", "genai-dml", "--yes"], 0, "", "removed genai-dml");
}

#[test]
fn a_checkpoint_is_exported_for_amd_s_tools_and_compiled_again() {
    let home = tempfile::tempdir().unwrap();
    let check =
        |args: &[&str], code, stdout: &str, stderr: &str| check(home.path(), args, code, stdout, stderr);
    let (model, out) = (home.path().join("tiny"), home.path().join("tiny-quark"));
    std::fs::create_dir(&model).unwrap();
    for file in ["llama/config.json", "llama/model.safetensors", "tokenizer.json"] {
        let from = exports("../../../../checkpoint/tests/goldens/families").join(file);
        std::fs::copy(&from, model.join(from.file_name().unwrap())).unwrap();
    }
    let (model, out) = (model.to_str().unwrap(), out.to_str().unwrap());
    let quark = ["export", model, out, "--format", "quark"];
    check(&quark, 10, "", "--group 32");
    check(&[&quark[..], &["--group", "48"]].concat(), 2, "", "[128, 64, 32]");
    check(&["export", &format!("{model}@w4"), out, "--format", "quark"], 2, "", "without @w4");
    check(&["export", model, out, "--group", "32"], 2, "", "--group applies only to --format quark");
    check(&[&quark[..], &["--group", "32"]].concat(), 0, "tiny-quark", "exported");
    check(&["compile", out, "--scheme", "w4"], 0, "tiny-quark", "");
    check(&["list"], 0, "tiny-quark", "");
}

#[test]
fn refused_imports_state_a_reason() {
    let home = tempfile::tempdir().unwrap();
    let check = |args: &[&str], code, stderr: &str| check(home.path(), args, code, "", stderr);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    check(&["import", "/no/such/folder"], 3, "/no/such/folder");
    check(&["import", path, "--name", "empty"], 3, "contains no .onnx file");
    let checkpoint = folder.path().join("checkpoint");
    std::fs::create_dir(&checkpoint).unwrap();
    std::fs::write(checkpoint.join("model.safetensors"), "").unwrap();
    let checkpoint = checkpoint.to_str().unwrap();
    check(&["import", checkpoint], 2, &format!("try `narthex compile {checkpoint}`"));
    std::fs::write(folder.path().join("genie_config.json"), "{}").unwrap();
    let device = r#"{"devices": [{"soc_model": 88}]}"#;
    std::fs::write(folder.path().join("htp_backend_ext_config.json"), device).unwrap();
    check(
        &["import", path, "--name", "bundle"],
        10,
        "runs only on the NPU of Snapdragon X2 Elite (x2-elite)",
    );
    check(&["import", path, "--name", "bundle"], 10, "narthex compile MODEL --target qnn:x2-elite");
    check(&["import", path, "--name", "smollm2:135m"], 2, "another name with --name");
    check(&["list"], 0, "No model is installed");
}

#[test]
fn a_name_stays_with_what_it_was_given_to() {
    let home = tempfile::tempdir().unwrap();
    let check = |args: &[&str], code, stderr: &str| check(home.path(), args, code, "", stderr);
    let (chat, vectors) = (exports("genai-dml"), exports("sentence"));
    let (chat, vectors) = (chat.to_str().unwrap(), vectors.to_str().unwrap());
    let other = ["import", vectors, "--name", "tiny", "--file", "onnx/model.onnx"];
    check(&["import", chat, "--name", "tiny"], 0, "imported tiny");
    check(&other, 2, "the name tiny is already used by a model from local ");
    check(&other, 2, "`narthex rm tiny`");
    // The same folder may be imported again.
    check(&["import", chat, "--name", "tiny"], 0, "imported tiny");
    check(&["rm", "tiny", "--yes"], 0, "");
    check(&other, 0, "imported tiny");
}

#[test]
fn data_that_is_cut_off_or_missing_is_named() {
    let home = tempfile::tempdir().unwrap();
    let check = |args: &[&str], code, stderr: &str| check(home.path(), args, code, "", stderr);
    let folder = tempfile::tempdir().unwrap();
    copy(&exports("genai-dml"), folder.path());
    let path = folder.path().to_str().unwrap();
    let data = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let data = data.into_iter().find(|path| path.extension().is_some_and(|end| end == "data")).unwrap();
    let bytes = std::fs::read(&data).unwrap();
    std::fs::write(&data, &bytes[..bytes.len() / 2]).unwrap();
    check(
        &["import", path, "--name", "cut"],
        9,
        &format!("error: {} ends before the weight", data.display()),
    );
    std::fs::remove_file(&data).unwrap();
    check(
        &["import", path, "--name", "none"],
        3,
        &format!("error: cannot read {}: No such file", data.display()),
    );
}

/// Copies an export with a changed graph to a new folder.
fn changed(name: &str, change: impl FnOnce(&mut Graph)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&exports(name), folder.path());
    let path = folder.path().join("model.onnx");
    let mut graph = Graph::decode(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut graph);
    std::fs::write(&path, graph.encode()).unwrap();
    folder
}

#[test]
fn a_graph_that_does_not_run_is_not_imported() {
    let home = tempfile::tempdir().unwrap();
    let check = |args: &[&str], code, stderr: &str| check(home.path(), args, code, "", stderr);
    let broken = changed("masked", |graph| {
        let node = graph.nodes.iter_mut().find(|node| node.op == "MatMul").unwrap();
        node.op = "Frobnicate".to_owned();
    });
    let path = broken.path().to_str().unwrap();
    check(&["import", path, "--name", "broken"], 9, "its graph does not run: ");
    check(&["import", path, "--name", "broken"], 9, "Frobnicate");
    check(&["list"], 0, "No model is installed");
    let whole = changed("masked", |_| ());
    check(&["import", whole.path().to_str().unwrap(), "--name", "whole"], 0, "imported whole");
}

#[test]
fn an_import_installs_the_runtime_that_checks_its_graph() {
    let home = tempfile::tempdir().unwrap();
    // A pip that notes its call and fails.
    let pip = "import sys\nif '--version' not in sys.argv:\n    open('called', 'w').write(' '.join(sys.argv))\n    \
               sys.exit('no wheel')\n";
    write_pip(home.path(), pip);
    let graph = exports("masked");
    let run = |more: &[&str]| {
        let import = [&["import", graph.to_str().unwrap()], more].concat();
        let mut command = with_pip(&home.path().join("store"), home.path(), &import);
        let output = command.current_dir(home.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let called = home.path().join("called");
    let (code, error) = run(&["--offline"]);
    assert!(code == Some(0) && error.contains("The graph was not run"), "{error}");
    assert!(!called.exists(), "pip was started");
    let (code, error) = run(&["--name", "other"]);
    assert!(code == Some(4) && error.contains("Installing ONNX Runtime"), "{error}");
    assert!(std::fs::read_to_string(called).unwrap().contains("onnxruntime=="));
    assert!(!home.path().join("store/packages/other").exists(), "a graph that was not run is not kept");
}
