//! Models on the hub, with a local server in its place. A plan reads only settings and the headers of weight files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use narthex_testkit::{
    checkpoint::{tiny_bert_safetensors, tiny_llama_gguf, tiny_llama_shards},
    hub::{HubServer, Repo},
};

fn plan(endpoint: &str, home: &Path, model: &str) -> Output {
    narthex(endpoint, home, &["plan", model, "--json", "--target", "qnn:x-elite"])
}

fn narthex(endpoint: &str, home: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_narthex"))
        .args(args)
        .env("NARTHEX_HOME", home)
        .env("HF_HUB_CACHE", home.join("hub"))
        .env("HF_ENDPOINT", endpoint)
        .env_remove("HF_HUB_OFFLINE")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Repository of a tiny Llama in two shards. The last shard has unreferenced bytes after its tensors.
fn repo() -> Repo {
    repo_of(|folder| tiny_llama_shards(folder, 7).unwrap())
}

/// Repository of the files that `write` creates in a folder.
fn repo_of(write: impl FnOnce(&Path)) -> Repo {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    Repo::of_folder(folder.path()).unwrap()
}

#[test]
fn a_hub_model_is_planned_without_its_weights() {
    let home = tempfile::tempdir().unwrap();
    let repo = repo();
    // The model card is not part of the checkpoint.
    let wanted = repo.files.iter().filter(|(name, _)| *name != "README.md");
    let bytes: usize = wanted.map(|(_, bytes)| bytes.len()).sum();
    let server = HubServer::start(move |request| repo.answer(request));
    let output = plan(&server.endpoint, home.path(), "hf:owner/tiny");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!((&found["longest"], &found["schemes"][0]["scheme"]), (&256.into(), &"w8".into()));
    assert!(found["parameters"].as_u64().is_some_and(|count| count > 10_000), "{found}");
    assert_eq!((&found["license"], &found["source"]), (&"apache-2.0".into(), &"hub owner/tiny".into()));
    assert_eq!(found["download_bytes"], bytes);
    let gets: Vec<String> = server.requests().into_iter().map(|request| request.path).collect();
    assert!(gets.iter().all(|path| !path.ends_with("tokenizer.json")), "{gets:?}");
    assert!(gets.iter().filter(|path| path.ends_with(".safetensors")).count() == 2, "{gets:?}");
    // Only the settings remain, in the hub's own cache.
    let left = fs::read_dir(home.path().join("tmp")).unwrap().count();
    assert_eq!(left, 0);
}

#[test]
fn modules_and_the_name_of_a_hub_model_decide_what_it_is() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/tests/goldens");
    let check = |golden: &str, model: &str, left_out: &[&str], expect: &str| {
        let home = tempfile::tempdir().unwrap();
        let mut repo = Repo::of_folder(&goldens.join(golden)).unwrap();
        repo.files.retain(|name, _| !left_out.contains(&name.as_str()));
        repo.files.entry("tokenizer.json".to_owned()).or_default();
        let server = HubServer::start(move |request| repo.answer(request));
        let output = plan(&server.endpoint, home.path(), model);
        let found: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{model}: {}", String::from_utf8_lossy(&output.stderr)));
        let structure = found["structure"].as_str().unwrap();
        assert!(structure.ends_with(expect), "{model}: {structure}");
    };
    check("embedders/gemma3", "hf:owner/gemma", &[], "vectors of 24");
    check("scorers/qwen3_answers", "hf:owner/judge", &[], "a score");
    let unnamed = ["modules.json", "chat_template.jinja"];
    check("scorers/qwen3_answers", "hf:owner/judge", &unnamed, "vocabulary 268");
    check("scorers/qwen3_answers", "hf:owner/Qwen3-Reranker-0.6B", &unnamed, "a score");
}

#[test]
fn a_gguf_file_on_the_hub_is_planned_from_its_beginning() {
    let home = tempfile::tempdir().unwrap();
    let repo = Repo::new(&[("tiny.gguf", &tiny_llama_gguf(7)), ("other.gguf", b"no")]);
    let server = HubServer::start(move |request| repo.answer(request));
    let output = plan(&server.endpoint, home.path(), "hf:owner/tiny/tiny.gguf");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(found["structure"], "2 layers, width 64, vocabulary 300");
}

#[test]
fn a_shard_that_is_cut_off_is_called_as_on_the_hub() {
    let home = tempfile::tempdir().unwrap();
    let mut repo = repo();
    let shard = repo.files.get_mut("model-00002-of-00002.safetensors").unwrap();
    shard.truncate(shard.len() - 8);
    let server = HubServer::start(move |request| repo.answer(request));
    let output = plan(&server.endpoint, home.path(), "hf:owner/tiny");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("error: hf:owner/tiny/model-00002-of-00002.safetensors is malformed"), "{text}");
}

#[test]
fn a_tensor_that_a_hub_model_lacks_is_named_before_the_download() {
    let home = tempfile::tempdir().unwrap();
    let mut repo = repo();
    let config = repo.files.get_mut("config.json").unwrap();
    let text = String::from_utf8(config.clone()).unwrap();
    *config = text.replace("\"num_hidden_layers\":2", "\"num_hidden_layers\":3").into_bytes();
    let server = HubServer::start(move |request| repo.answer(request));
    let output = plan(&server.endpoint, home.path(), "hf:owner/tiny");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("no tensor for layers.2."), "{text}");
}

#[test]
fn a_model_without_a_tokenizer_of_its_own_gets_the_one_that_the_catalogue_names() {
    let home = tempfile::tempdir().unwrap();
    let (whole, mut bare) = (repo(), repo());
    bare.files.retain(|name, _| name != "tokenizer.json" && name != "tokenizer_config.json");
    let mut lender = whole;
    lender.files.retain(|name, _| name == "tokenizer.json");
    lender.files.insert("special_tokens_map.json".to_owned(), b"{}".to_vec());
    let server = HubServer::start(move |request| {
        if request.path.contains("/TinyLlama/") { lender.answer(request) } else { bare.answer(request) }
    });
    let run = |args: &[&str]| narthex(&server.endpoint, home.path(), args);
    let output = run(&["compile", "openelm:270m", "--scheme", "f32"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed: serde_json::Value = serde_json::from_slice(&run(&["list", "--json"]).stdout).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["kind"]), (&"openelm:270m".into(), &"text".into()));
    let output = run(&["pull", "hf:owner/tiny"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(4) && text.contains("no tokenizer.json"), "{text}");
}

#[test]
fn an_embedding_model_has_the_prompts_that_the_catalogue_knows() {
    let home = tempfile::tempdir().unwrap();
    let bert = repo_of(|folder| {
        tiny_bert_safetensors(folder, 7).unwrap();
        let _ = fs::remove_file(folder.join("config_sentence_transformers.json"));
    });
    let server = HubServer::start(move |request| bert.answer(request));
    let run = |args: &[&str]| {
        let output = narthex(&server.endpoint, home.path(), args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for model in ["bge-small-en-v1.5", "hf:BAAI/bge-small-en-v1.5"] {
        run(&["pull", model]);
        let shown = run(&["show", model]);
        assert!(
            shown.contains("query: \"Represent this sentence for searching relevant passages: \""),
            "{shown}"
        );
        assert!(shown.contains("passage: \"\""), "{shown}");
    }
    run(&["pull", "hf:owner/other"]);
    assert!(!run(&["show", "hf:owner/other"]).contains("Represent"), "another model has none");
}
