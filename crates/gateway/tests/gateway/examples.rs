//! Runs of the example programs that `cargo test` builds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Command;

/// Returns the command of an example.
fn example(name: &str) -> Command {
    let folder = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples");
    let program = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(program.exists(), "there is no {}: `cargo test` without --test builds it", program.display());
    let mut command = Command::new(program);
    command.env("NARTHEX_PYTHON", "/nonexistent/python");
    command
}

/// Runs an example, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn a_question_is_answered() {
    assert!(run(&mut example("chat")).contains("Paris"));
}

#[test]
fn an_answer_is_streamed() {
    let text = run(&mut example("stream"));
    assert!(text.starts_with("A ferry leaves the harbour") && text.contains(" tokens on "), "{text}");
}

#[test]
fn the_nearest_sentence_comes_first() {
    let text = run(example("semantic_search").arg("a baby cat"));
    assert!(text.lines().next().unwrap().contains("kitten"), "{text}");
}

#[test]
fn a_model_is_checked_and_compiled_for_an_npu() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.gguf");
    std::fs::write(&file, narthex_testkit::checkpoint::tiny_llama_gguf(7)).unwrap();
    // Calibration uses the library of the prepared store.
    let store = narthex_catalog::store::Store::open(None).unwrap();
    let library = narthex_catalog::runtimes::core_library(&store).unwrap().unwrap();
    let mut command = example("compile_for_npu");
    command.arg(&file).env("NARTHEX_HOME", folder.path().join("home")).env("ORT_DYLIB_PATH", library);
    let text = run(&mut command);
    assert!(text.contains("runs completely on the NPU") && text.contains(" graphs in "), "{text}");
}
