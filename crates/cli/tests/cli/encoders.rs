//! `rerank`, `classify`, `answer`, `fill` and `complete` over tiny models in a temporary store.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{
    io::Write,
    path::Path,
    process::{Output, Stdio},
};

use narthex_testkit::checkpoint::tiny_llama_safetensors;
use serde_json::Value;

use crate::support::{
    encoders::{Golden, Head},
    with_runtime,
};

/// Runs `narthex` over `home` with the runtime of the prepared store. Returns its standard output.
fn narthex(home: &Path, args: &[&str], stdin: &str) -> String {
    let output = run(home, args, stdin);
    assert!(output.status.success(), "{args:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn run(home: &Path, args: &[&str], stdin: &str) -> Output {
    let mut child = with_runtime(home, args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A child that has already failed does not read its input.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

/// Compiles a tiny encoder into the store at `home`. Returns the path of its checkpoint, which names it.
fn compiled(home: &Path, family: &'static str, head: Head) -> String {
    let checkpoint = home.join(family);
    std::fs::rename(Golden::read(family).checkpoint(head).keep(), &checkpoint).unwrap();
    let path = checkpoint.to_str().unwrap().to_owned();
    narthex(home, &["compile", "--scheme", "f32", &path], "");
    path
}

#[test]
fn documents_come_as_arguments_or_lines() {
    let home = tempfile::tempdir().unwrap();
    let model = compiled(home.path(), "bert", Head::Score);
    let rerank = ["rerank", "--scheme", "f32", "-m", &model, "what sleeps?"];
    let lines = narthex(home.path(), &rerank, "the cat sleeps\na dog runs\n");
    let ask = |more: &[&str]| narthex(home.path(), &[&rerank[..], more].concat(), "");
    assert_eq!(ask(&["the cat sleeps", "a dog runs"]), lines);
    let mut documents: Vec<&str> = lines.lines().map(|line| line.split_once('\t').unwrap().1).collect();
    documents.sort_unstable();
    assert_eq!(documents, ["a dog runs", "the cat sleeps"]);
    let report: Value = serde_json::from_str(&ask(&["--json", "--top-n", "1", "a dog runs", "it"])).unwrap();
    let best = &report["results"][0];
    assert_eq!(best["document"], ["a dog runs", "it"][best["index"].as_u64().unwrap() as usize]);
    assert_eq!(report["results"].as_array().unwrap().len(), 1);
}

#[test]
fn texts_have_labels_and_entities() {
    let home = tempfile::tempdir().unwrap();
    let model = compiled(home.path(), "distilbert", Head::Labels);
    let classify = ["classify", "--scheme", "f32", "-m", &model];
    let lines = narthex(home.path(), &classify, "the cat sleeps\na dog runs\n");
    let ask = |more: &[&str]| narthex(home.path(), &[&classify[..], more].concat(), "");
    assert_eq!(ask(&["the cat sleeps", "a dog runs"]), lines);
    let texts: Vec<&str> = lines.lines().map(|line| line.splitn(3, '\t').nth(2).unwrap()).collect();
    assert_eq!(texts, ["the cat sleeps", "a dog runs"]);
    assert_eq!(ask(&["--top-k", "3", "a dog runs"]).lines().count(), 3);
    let report: Value = serde_json::from_str(&ask(&["--json", "a dog runs"])).unwrap();
    assert_eq!(report["results"][0]["labels"].as_array().unwrap().len(), 5);
    let shown = narthex(home.path(), &["show", &model], "");
    assert!(shown.contains("labels       O, B-PER, I-PER, B-LOC, LOC"), "{shown}");

    let tagger = home.path().join("tagger");
    std::fs::rename(Golden::read("distilbert").checkpoint(Head::Tokens).keep(), &tagger).unwrap();
    let tagger = tagger.to_str().unwrap();
    narthex(home.path(), &["compile", "--scheme", "f32", tagger], "");
    let text = "a dog runs to the river";
    let tag = ["classify", "--scheme", "f32", "-m", tagger, text];
    let report: Value =
        serde_json::from_str(&narthex(home.path(), &[&tag[..], &["--json"]].concat(), "")).unwrap();
    let entities = report["results"][0]["entities"].as_array().unwrap();
    let words: Vec<&str> = entities.iter().map(|entity| entity["text"].as_str().unwrap()).collect();
    assert_eq!(words, ["a", "runs to the river"]);
    assert_eq!(narthex(home.path(), &tag, "").lines().count(), entities.len());
    let tokens = narthex(home.path(), &[&tag[..], &["--aggregation", "none"]].concat(), "");
    assert!(tokens.lines().count() > entities.len(), "{tokens}");
}

#[test]
fn a_context_is_a_file_or_standard_input() {
    let home = tempfile::tempdir().unwrap();
    let model = compiled(home.path(), "distilbert", Head::Spans);
    let context = "the cat sleeps in the house. a dog runs to the river.";
    let file = home.path().join("context.txt");
    std::fs::write(&file, context).unwrap();
    let answer = ["answer", "--scheme", "f32", "-m", &model, "where does it run?"];
    let ask = |more: &[&str], stdin: &str| narthex(home.path(), &[&answer[..], more].concat(), stdin);
    let from_file = ask(&["--context", file.to_str().unwrap()], "");
    assert_eq!(ask(&["--context", "-"], context), from_file);
    assert!(context.contains(from_file.trim()) || from_file.trim() == "no answer", "{from_file}");
    assert_eq!(ask(&["--context", "-", "--top-k", "3"], context).lines().count(), 4);
    let report: Value = serde_json::from_str(&ask(&["--context", "-", "--json"], context)).unwrap();
    let span = &report["answers"][0];
    let place = ["start", "end"].map(|end| span[end].as_u64().unwrap() as usize);
    assert_eq!(&context[place[0]..place[1]], span["text"].as_str().unwrap());
}

#[test]
fn a_question_is_about_a_file() {
    let home = tempfile::tempdir().unwrap();
    let model = compiled(home.path(), "distilbert", Head::Spans);
    let context = "the cat sleeps in the house. a dog runs to the river.";
    let file = home.path().join("report.md");
    std::fs::write(&file, context).unwrap();
    let file = file.to_str().unwrap();
    let chat = ["chat", "--scheme", "f32", "-m", &model, "--file", file, "where does it run?"];
    let text = narthex(home.path(), &chat, "");
    let report: Value =
        serde_json::from_str(&narthex(home.path(), &[&chat[..], &["--json"]].concat(), "")).unwrap();
    let reading = &report["reading"];
    let place = ["start", "end"].map(|end| reading[end].as_u64().unwrap() as usize);
    assert_eq!(reading["text"], context[place[0]..place[1]]);
    assert_eq!(
        (&reading["document"], report["text"].as_str()),
        (&Value::from("report.md"), Some(text.trim_end()))
    );
    let refused = run(home.path(), &[&chat[..5], &["where does it run?"]].concat(), "");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("--file"), "{said}");
}

#[test]
fn a_model_without_a_template_goes_on_from_a_text() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("base");
    std::fs::create_dir(&folder).unwrap();
    tiny_llama_safetensors(&folder, 7).unwrap();
    let config = folder.join("tokenizer_config.json");
    let mut keys: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    keys.as_object_mut().unwrap().remove("chat_template");
    std::fs::write(config, keys.to_string()).unwrap();
    let model = folder.to_str().unwrap();
    narthex(home.path(), &["compile", "--scheme", "f32", model], "");
    let listed: Value = serde_json::from_str(&narthex(home.path(), &["list", "--json"], "")).unwrap();
    assert_eq!(listed[0]["kind"], "text");
    let complete = ["complete", "--scheme", "f32", "--max-tokens", "4", "-m", model];
    let text = narthex(home.path(), &[&complete[..], &["the cat"]].concat(), "");
    assert!(!text.trim().is_empty());
    assert_eq!(narthex(home.path(), &complete, "the cat\n"), text, "a text may come through a pipe");
    let refused = run(home.path(), &["chat", "--scheme", "f32", "-m", model, "hello"], "");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("`narthex complete -m"), "{said}");
}

#[test]
fn masks_are_filled_and_tokens_added() {
    let home = tempfile::tempdir().unwrap();
    let model = compiled(home.path(), "mobilebert", Head::Masked);
    let fill = ["fill", "--scheme", "f32", "-m", &model];
    let ask = |more: &[&str]| narthex(home.path(), &[&fill[..], more].concat(), "");
    let lines = ask(&["a [MASK] runs to the [MASK].", "--top-k", "3"]);
    let masks: Vec<&str> = lines.lines().map(|line| line.split_once('\t').unwrap().0).collect();
    assert_eq!(masks, ["1", "1", "1", "2", "2", "2"]);
    let report: Value = serde_json::from_str(&ask(&["the [MASK] sleeps", "--json"])).unwrap();
    assert_eq!(report["masks"][0].as_array().unwrap().len(), 5);
    let more = ["the [MASK] sleeps", "--generate", "3", "--rounds", "2"];
    let text = ask(&more);
    assert!(text.starts_with("the") && text.ends_with(" sleeps\n"), "{text}");
    let report: Value = serde_json::from_str(&ask(&[&more[..], &["--json"]].concat())).unwrap();
    assert_eq!(
        (report["text"].as_str(), report["tokens"].as_array().unwrap().len()),
        (Some(text.trim_end()), 3)
    );
}
