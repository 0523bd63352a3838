//! The first commands of a new user, without a model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use narthex_testkit::checkpoint::{tiny_llama_gguf, tiny_llama_safetensors};

use crate::support::{offline, write_pip};

fn narthex(home: &Path, args: &[&str]) -> Output {
    offline(&home.join("store"), args).current_dir(home).env("HF_HUB_CACHE", home).output().unwrap()
}

/// Checks the exit code, and that the output contains a text.
#[track_caller]
fn check(home: &Path, args: &[&str], code: i32, expect: &str) -> String {
    let output = narthex(home, args);
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{text}");
    assert!(text.contains(expect), "{args:?}: {expect:?} is not in\n{text}");
    text
}

#[test]
fn run_is_chat_with_the_model_first() {
    let home = tempfile::tempdir().unwrap();
    check(home.path(), &["run", "no-such-model", "hi"], 3, "no model is named \"no-such-model\"");
    check(home.path(), &["run"], 2, "Usage: narthex run <MODEL> [PROMPT]");
}

#[test]
fn an_empty_prompt_is_refused_before_a_model_is_loaded() {
    let home = tempfile::tempdir().unwrap();
    for args in [&["chat", ""][..], &["run", "no-such-model", " "], &["complete", ""], &["chat"]] {
        check(home.path(), args, 2, "prompt: expected a text, found an empty one");
    }
    std::fs::write(home.path().join("empty.txt"), "\n").unwrap();
    for (args, param) in [
        (&["embed", "", " "][..], "text"),
        (&["rerank", "", "a"], "query"),
        (&["rerank", "a", ""], "documents"),
        (&["fill", " "], "text"),
        (&["answer", "", "--context", "empty.txt"], "question"),
        (&["answer", "a", "--context", "empty.txt"], "context"),
    ] {
        let text = check(home.path(), args, 2, &format!("{param}: expected a text, found an empty one"));
        assert!(!text.contains("Fetching"), "{args:?}: {text}");
    }
}

#[test]
fn a_model_of_another_kind_is_refused_before_it_is_fetched() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("context.txt"), "notes").unwrap();
    for (args, expect) in [
        (&["embed", "-m", "llama3.3:70b", "a"][..], "llama3.3:70b is a chat model, not an embedding model"),
        (&["rerank", "-m", "smollm2:135m", "a", "b"], "smollm2:135m is a chat model, not a reranker"),
        (&["answer", "-m", "gpt2", "a", "--context", "context.txt"], "not a question-answering model"),
        (&["fill", "-m", "all-minilm-l6-v2", "a"], "an embedding model, not a masked language model"),
        (&["chat", "-m", "all-minilm-l6-v2", "a"], "is an embedding model, not a chat model"),
        (&["complete", "-m", "all-minilm-l6-v2", "a"], "is an embedding model, not a text completion model"),
        (&["bench", "-m", "all-minilm-l6-v2"], "is an embedding model, not a chat model"),
        (&["chat", "-m", "gpt2", "a"], "gpt2 has no chat template; `narthex complete -m gpt2 TEXT`"),
    ] {
        let text = check(home.path(), args, 2, expect);
        assert!(!text.contains("Fetching"), "{args:?}: {text}");
    }
    let args = ["embed", "-m", "llama3.3:70b", "a"];
    check(home.path(), &args, 2, "`narthex list --available --kind embedding` lists suitable models");
}

#[test]
fn names_of_no_model_are_refused_at_the_start() {
    let home = tempfile::tempdir().unwrap();
    let check = |args: &[&str], code, expect: &str| check(home.path(), args, code, expect);
    check(&["launch", "aider", "-m", "nope", "--print"], 3, "no model is named \"nope\"");
    check(&["mcp", "--chat-model", "nope"], 3, "no model is named \"nope\"");
    check(&["serve", "--port", "0", "--alias", "a=nope"], 2, "error: alias: no model is named \"nope\" (");
    check(
        &["chat", "-m", "smollm2:135m@w5", "a"],
        3,
        "is not a scheme: expected w8, w4, f16, f32, w8a16, w8a8 or w4a16",
    );
    check(&["list", "--kind", "embedding"], 0, "No model of the kind embedding is installed; ");
}

#[test]
fn hidden_commands_stay_hidden() {
    let home = tempfile::tempdir().unwrap();
    for args in [&["try-ou"][..], &["completions", "bash"], &["completions", "fish"], &["--help"]] {
        let output = narthex(home.path(), args);
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        assert!(!text.contains("try-out") && !text.contains("try__out"), "{args:?}: {text}");
    }
}

#[test]
fn a_model_is_not_removed_without_a_word() {
    let home = tempfile::tempdir().unwrap();
    let check = |args: &[&str], code, expect: &str| check(home.path(), args, code, expect);
    std::fs::write(home.path().join("tiny.gguf"), tiny_llama_gguf(7)).unwrap();
    for scheme in ["f32", "f16", "w4"] {
        check(
            &["compile", "tiny.gguf", "--scheme", scheme, "--calibrate", "none"],
            0,
            "compiled local/tiny (",
        );
    }
    check(&["rm", "local/tiny"], 2, "this would remove local/tiny (");
    check(&["rm", "local/tiny@w4"], 2, "this would remove local/tiny (w4)");
    check(&["rm", "local/tiny@w4", "--yes"], 0, "removed local/tiny (w4)");
    check(&["show", "local/tiny@w4"], 3, "local/tiny@w4 is not installed");
    check(&["show", "local/tiny", "--scheme", "w4"], 3, "`narthex compile PATH --scheme w4`");
    check(&["show", "local/tiny", "--scheme", "f16"], 0, "scheme       f16");
    check(&["rm", "local/tiny", "-y"], 0, "removed local/tiny (f16, f32)");
    check(&["rm", "smollm2:135m", "-y"], 3, "`narthex list` shows the installed models; ");
    check(&["list"], 0, "No model is installed; `narthex list --available`");
}

#[test]
fn packages_of_own_files_have_readable_names() {
    let home = tempfile::tempdir().unwrap();
    let check = |args: &[&str], code, expect: &str| check(home.path(), args, code, expect);
    let (tiny, other) = (home.path().join("tiny"), home.path().join("other/tiny"));
    for (seed, folder) in (7..).zip([&tiny, &other]) {
        std::fs::create_dir_all(folder).unwrap();
        tiny_llama_safetensors(folder, seed).unwrap();
    }
    let compile = |path: &str, more: &[&str]| {
        let args = [&["compile", path, "--scheme", "f32", "--calibrate", "none"], more].concat();
        narthex(home.path(), &args)
    };
    let name = |output: Output| {
        let text = String::from_utf8(output.stderr).unwrap();
        let after = text.rsplit_once("compiled ").map(|(_, rest)| rest.to_owned());
        after.and_then(|rest| Some(rest.split_once(" (")?.0.to_owned())).unwrap_or(text)
    };
    assert_eq!(name(compile("./tiny", &[])), "local/tiny");
    // Another spelling of the path is the same model; another folder with the same name is a different one.
    assert_eq!(name(compile(tiny.to_str().unwrap(), &[])), "local/tiny");
    let second = name(compile("./other/tiny", &[]));
    assert!(second.starts_with("local/tiny-"), "{second}");
    assert_eq!(name(compile("./other/tiny", &["--name", "mine"])), "mine");
    assert_eq!(name(compile("./other/tiny", &["--name", "mine"])), "mine", "it may be compiled again");
    let taken = compile("./tiny", &["--name", "mine"]);
    assert!(
        String::from_utf8(taken.stderr)
            .unwrap()
            .contains("the name mine is already used by a model from local")
    );
    let known = compile("./tiny", &["--name", "gpt2"]);
    assert!(String::from_utf8(known.stderr).unwrap().contains("gpt2 is a model of the catalogue"));
    check(&["show", "mine"], 0, "model        mine");
    check(&["show", "./tiny"], 0, "model        local/tiny\n");
}

#[test]
fn a_plan_of_no_model_states_what_a_model_is() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "notes").unwrap();
    std::fs::create_dir(home.path().join("docs")).unwrap();
    for path in ["./notes.txt", "./docs"] {
        let text = check(home.path(), &["plan", path], 2, "is not a model; expected a name of");
        assert!(!text.contains("narthex check"), "{text}");
    }
}

#[test]
fn a_file_that_is_missing_or_of_another_kind_is_named() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("model");
    std::fs::create_dir(&folder).unwrap();
    tiny_llama_safetensors(&folder, 7).unwrap();
    std::fs::remove_file(folder.join("config.json")).unwrap();
    for command in ["plan", "compile"] {
        let text =
            check(home.path(), &[command, "./model"], 3, "config.json: the file is missing beside model.");
        assert!(!text.contains("another model"), "{text}");
    }
    std::fs::write(home.path().join("notes.txt"), "notes").unwrap();
    std::fs::write(home.path().join("model.onnx"), "").unwrap();
    let expect = "expected a folder with an ONNX export or an .onnx file, found the file ./notes.txt";
    check(home.path(), &["import", "./notes.txt"], 2, expect);
    let serve = ["serve", "--port", "0", "--prefix-cache-dir", "notes.txt"];
    check(home.path(), &serve, 2, "prefix_cache_dir: expected a folder, found the file notes.txt");
}

#[test]
fn content_that_this_version_does_not_support_has_an_exit_code_of_its_own() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("model");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("config.json"), r#"{"architectures": ["FrobnicatorForCausalLM"]}"#).unwrap();
    check(home.path(), &["plan", "./model"], 10, "FrobnicatorForCausalLM");
}

#[cfg(unix)]
#[test]
fn a_job_that_nothing_can_interrupt_ends_with_the_process() {
    use std::time::{Duration, Instant};

    let home = tempfile::tempdir().unwrap();
    let started = home.path().join("started");
    let sleep = format!("import time\nopen({:?}, 'w').close()\ntime.sleep(120)\n", started.to_str().unwrap());
    write_pip(home.path(), &sleep);
    // The doctor waits for the fake pip.
    let mut child = Command::new(env!("CARGO_BIN_EXE_narthex"))
        .arg("doctor")
        .env("NARTHEX_HOME", home.path().join("store"))
        .env("PYTHONPATH", home.path())
        .env_remove("NARTHEX_PYTHON")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while !started.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "pip was not started");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
