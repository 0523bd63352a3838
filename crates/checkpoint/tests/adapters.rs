//! Adapters change weights as PEFT's own merge does. `goldens/adapters.py` made them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use narthex_checkpoint::{Adapter, Checkpoint, CheckpointError, open_with};
use narthex_testkit::checkpoint::{HfTensor, safetensors_bytes};
use serde_json::{Value, json};
use tempfile::TempDir;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

/// Returns a folder with the settings of a family and these weights.
fn folder(family: &str, weights: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let families = goldens().join("families");
    fs::copy(families.join(family).join("config.json"), folder.path().join("config.json")).unwrap();
    fs::copy(families.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    fs::copy(weights, folder.path().join("model.safetensors")).unwrap();
    folder
}

fn base(family: &str) -> TempDir {
    folder(family, &goldens().join("families").join(family).join("model.safetensors"))
}

fn adapter(path: &Path, scale: &str) -> Adapter {
    Adapter::open(path, scale.parse().unwrap()).unwrap_or_else(|error| panic!("{error}"))
}

fn opened(path: &Path, adapters: &[Adapter]) -> Checkpoint {
    open_with(path, adapters).unwrap_or_else(|error| panic!("{error}"))
}

/// Checks that the weights of two checkpoints are equal. Returns the number of those that differ from `base`.
fn compare(found: &Checkpoint, expected: &Checkpoint, base: &Checkpoint) -> usize {
    let mut changed = 0;
    for weight in found.architecture.weights() {
        let name = weight.name.to_string();
        let [found, expected, base] = [found, expected, base].map(|checkpoint| {
            let weight = checkpoint.weights.weight(&name).unwrap_or_else(|error| panic!("{error}"));
            (weight.shape.clone(), weight.to_f32())
        });
        assert_eq!(found.0, expected.0, "{name}");
        for (index, (a, b)) in found.1.iter().zip(&expected.1).enumerate() {
            assert!((a - b).abs() <= 2e-6 * (1.0 + b.abs()), "{name}[{index}]: {a} and {b}");
        }
        changed += usize::from(base.1 != expected.1);
    }
    changed
}

#[test]
fn adapters_of_peft_are_merged_as_peft_does() {
    // Weights of gpt2 are transposed and have another factor; those of phi3 are fused, and differ in rank and factor.
    for (family, updated) in [("llama", 2 * 7), ("gpt2", 2 * 6), ("phi3", 2 * 7)] {
        let golden = goldens().join("adapters").join(family);
        let folders = [base(family), folder(family, &golden.join("merged.safetensors"))];
        let [base, merged] = folders.each_ref().map(|folder| opened(folder.path(), &[]));
        let adapted = opened(folders[0].path(), &[adapter(&golden, "1")]);
        assert_eq!(compare(&adapted, &merged, &base), updated, "{family}");

        // The weights file stands for its folder. Halves of one adapter add up.
        let half = adapter(&golden.join("adapter_model.safetensors"), "0.5");
        assert_eq!(half.entry().name, family);
        assert_eq!(compare(&opened(folders[0].path(), &[half.clone(), half]), &merged, &base), updated);
        assert_eq!(compare(&opened(folders[0].path(), &[adapter(&golden, "0")]), &base, &base), 0);
    }
}

#[test]
fn adapters_in_gguf_follow_the_order_of_its_rows() {
    let golden = goldens().join("adapters/llama");
    let gguf = goldens().join("families/llama/model.gguf");
    let merged = folder("llama", &golden.join("merged.safetensors"));
    let alone = tempfile::tempdir().unwrap();
    fs::copy(golden.join("adapter.gguf"), alone.path().join("poems.gguf")).unwrap();
    assert_eq!(adapter(alone.path(), "1").entry().name, "poems");
    let adapter = adapter(&golden.join("adapter.gguf"), "1");
    assert_eq!(adapter.entry().name, "adapter");
    let (base, merged) = (opened(&gguf, &[]), opened(merged.path(), &[]));
    assert_eq!(compare(&opened(&gguf, &[adapter]), &merged, &base), 2 * 7);
}

#[cfg(unix)]
#[test]
fn links_to_adapters_keep_their_names() {
    use std::os::unix::fs::symlink;

    let golden = goldens().join("adapters/llama");
    let folder = tempfile::tempdir().unwrap();
    let link = |target: &str, name: &str| symlink(golden.join(target), folder.path().join(name)).unwrap();
    // A hub cache names files after their digests.
    fs::copy(golden.join("adapter.gguf"), folder.path().join("0a1b")).unwrap();
    symlink(folder.path().join("0a1b"), folder.path().join("poems.gguf")).unwrap();
    assert_eq!(adapter(&folder.path().join("poems.gguf"), "1").entry().name, "poems");
    link("adapter_config.json", "adapter_config.json");
    link("adapter_model.safetensors", "adapter_model.safetensors");
    let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(adapter(&folder.path().join("adapter_model.safetensors"), "1").entry().name, name);
}

#[test]
fn adapters_of_other_models_and_formats_are_refused() {
    let adapters = goldens().join("adapters");
    let refused = |path: &Path, adapter: Adapter, expect: &str| {
        let error = open_with(path, &[adapter]).err().unwrap().to_string();
        assert!(error.contains(expect), "{error} lacks {expect}");
    };
    let (llama, gpt2) = (base("llama"), base("gpt2"));
    let peft = |family: &str| adapter(&adapters.join(family), "1");
    refused(gpt2.path(), peft("llama"), "found model.layers.0.mlp.down_proj, expected updates of the linear");
    refused(llama.path(), peft("phi3"), "model.layers.0.mlp.gate_up_proj");
    let gguf = adapter(&adapters.join("llama/adapter.gguf"), "1");
    refused(llama.path(), gguf, "expected a folder of PEFT");
    refused(&goldens().join("families/llama/model.gguf"), peft("llama"), "convert_lora_to_gguf.py");
    // Layers of another width have the same names.
    refused(base("qwen3").path(), peft("llama"), "has the wrong shape");
}

/// Writes an adapter of PEFT with these settings and tensors. All elements have the same value.
fn written(config: &Value, tensors: &[(&str, [usize; 2])], value: f32) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    let tensors = tensors.iter().map(|(name, shape)| HfTensor {
        name: (*name).to_owned(),
        dtype: "F32",
        shape: shape.to_vec(),
        bytes: value.to_le_bytes().repeat(shape.iter().product()),
    });
    let bytes = safetensors_bytes(&tensors.collect::<Vec<_>>());
    fs::write(folder.path().join("adapter_model.safetensors"), bytes).unwrap();
    folder
}

const A: &str = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight";
const B: &str = "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight";
const PAIR: [(&str, [usize; 2]); 2] = [(A, [2, 32]), (B, [64, 2])];

fn error(folder: &TempDir) -> String {
    Adapter::open(folder.path(), Default::default()).unwrap_err().to_string()
}

#[test]
fn forms_that_are_more_than_an_update_are_refused() {
    let settings = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"});
    let with = |changes: Value| {
        let mut settings = settings.clone();
        changes.as_object().unwrap().iter().for_each(|(key, value)| settings[key] = value.clone());
        written(&settings, &PAIR, 0.5)
    };
    assert!(Adapter::open(with(json!({})).path(), Default::default()).is_ok());
    let harmless = json!({"use_dora": false, "modules_to_save": [], "init_lora_weights": "gaussian"});
    assert!(Adapter::open(with(harmless).path(), Default::default()).is_ok());
    let check = |changes: Value, expect: &str| {
        let found = error(&with(changes));
        assert!(found.contains(expect), "{found} lacks {expect}");
    };
    check(json!({"peft_type": "IA3"}), "unsupported peft_type: found IA3, expected LORA; merge the adapter");
    check(json!({"use_dora": true}), "found use_dora, expected LORA without use_dora");
    check(json!({"modules_to_save": ["lm_head"]}), "found modules_to_save");
    check(json!({"bias": "all"}), "unsupported bias: found all");
    check(json!({"init_lora_weights": "pissa_niter_4"}), "path_initial_model_for_weight_conversion");
    check(json!({"rank_pattern": {".*down": 2}}), "unsupported pattern: found .*down");
    check(json!({"r": 3}), "expected the rank 2 of model.layers.0.mlp.down_proj, found 3");
    check(json!({"r": "two"}), "settings of an adapter of PEFT");
    check(json!({"lora_alpha": 1e300}), "a finite factor");
}

#[test]
fn malformed_adapters_are_refused() {
    let settings = json!({"r": 2, "lora_alpha": 4});
    let check = |tensors: &[(&str, [usize; 2])], value: f32, expect: &str| {
        let found = error(&written(&settings, tensors, value));
        assert!(found.contains(expect), "{found} lacks {expect}");
    };
    check(&PAIR[..1], 0.5, "expected two matrices for model.layers.0.mlp.down_proj, found one");
    check(&[(A, [2, 32]), (B, [64, 3])], 0.5, "matrices of one rank");
    let twice = A.replace("lora_A", "lora_A.default");
    check(&[PAIR[0], PAIR[1], (&twice, [2, 32])], 0.5, "each matrix of an update once");
    check(&[], 0.5, "expected updates of linear layers, found none");
    check(&PAIR, f32::NAN, "contains NaN");
    let embedding = "base_model.model.model.embed_tokens.lora_embedding_A";
    check(&[(embedding, [2, 64])], 0.5, "found base_model.model.model.embed_tokens.lora_embedding_A");

    let absent = Adapter::open(Path::new("no/such/adapter"), Default::default()).unwrap_err();
    assert!(matches!(absent, CheckpointError::Read { .. }), "{absent}");
    let empty = tempfile::tempdir().unwrap();
    assert!(error(&empty).contains("adapter_config.json and adapter_model.safetensors"));
    fs::write(empty.path().join("adapter_config.json"), "{}").unwrap();
    assert!(error(&empty).contains("adapter_model.safetensors"));
    fs::write(empty.path().join("adapter_model.bin"), "").unwrap();
    assert!(error(&empty).contains("save the adapter again as safetensors"));
    let model = goldens().join("families/llama/model.gguf");
    let found = Adapter::open(&model, Default::default()).unwrap_err().to_string();
    assert!(found.contains("expected a LoRA adapter"), "{found}");
}

#[test]
fn updates_of_experts_are_refused() {
    let settings = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"});
    let of = |module: &str, [rows, cols]: [usize; 2]| {
        let name = |matrix: &str| format!("base_model.model.model.layers.0.{module}.lora_{matrix}.weight");
        written(&settings, &[(&name("A"), [2, cols]), (&name("B"), [rows, 2])], 0.5)
    };
    let model = base("qwen3-moe");
    let expert = adapter(of("mlp.experts.3.gate_proj", [64, 64]).path(), "1");
    let error = open_with(model.path(), &[expert]).err().unwrap().to_string();
    let expect =
        "found model.layers.0.mlp.experts.3.gate_proj, expected updates of layers that are not experts";
    assert!(error.contains(expect), "{error}");
    // Attention is adapted as in other models.
    let attention = adapter(of("self_attn.v_proj", [64, 64]).path(), "1");
    assert!(open_with(model.path(), &[attention]).is_ok());
}
