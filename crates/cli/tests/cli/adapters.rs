//! `narthex compile --lora`.

use std::{fs, path::Path};

use narthex_testkit::hub::{HubServer, Repo};

use crate::support::offline;

#[test]
fn an_adapter_of_the_hub_is_merged() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/goldens");
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("tiny");
    fs::create_dir(&model).unwrap();
    for file in ["llama/config.json", "llama/model.safetensors", "tokenizer.json"] {
        let name = file.rsplit('/').next().unwrap();
        fs::copy(goldens.join("families").join(file), model.join(name)).unwrap();
    }
    let mut repo = Repo::of_folder(&goldens.join("adapters/llama")).unwrap();
    repo.files.retain(|name, _| name.starts_with("adapter_"));
    let hub = HubServer::start(move |request| repo.answer(request));

    let model = model.to_str().unwrap();
    let compile = ["compile", model, "--scheme", "f32", "--lora"];
    let mut command = offline(home.path(), &[&compile[..], &["hf:me/poems:0.5"]].concat());
    command.env_remove("HF_HUB_OFFLINE").env("HF_ENDPOINT", &hub.endpoint);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(hub.gets("adapter_model.safetensors").len(), 1);
    let shown = offline(home.path(), &["show", "local/tiny-lora.me-poems.0.5@f32"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("adapter      me/poems, factor 0.5"), "{shown}");

    // An adapter alone is no model.
    let mut command = offline(home.path(), &["pull", "hf:me/poems"]);
    command.env_remove("HF_HUB_OFFLINE").env("HF_ENDPOINT", &hub.endpoint);
    let local = |path: &str| {
        let path = goldens.join("adapters").join(path);
        offline(home.path(), &["compile", path.to_str().unwrap(), "--scheme", "f32"])
    };
    for (mut command, step) in [
        (command, "narthex compile MODEL --lora hf:me/poems"),
        (
            local("phi3"),
            "found an adapter of PEFT, expected a model; add the adapter to its model with compile",
        ),
        (
            local("llama/adapter.gguf"),
            "found adapter, expected model; add an adapter to its model with compile",
        ),
    ] {
        let error = String::from_utf8(command.output().unwrap().stderr).unwrap();
        assert!(error.contains(step), "{error}");
    }

    for (adapter, expect) in [
        ("nowhere", "cannot read nowhere"),
        ("nowhere:200", "expected a factor from -100 to 100"),
        (model, "expected a GGUF file of an adapter, or a folder with adapter_config.json"),
    ] {
        let output = offline(home.path(), &[&compile[..], &[adapter]].concat()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(expect), "{error}");
    }
}
