//! A compile on paper against the compile itself, and what it says of models that no test could hold.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use narthex_compile::{
    check::Verdict,
    checkpoint::{self, open},
    outlook::Outlook,
    paper,
    pipeline::compile,
};
use narthex_spec::{Recipe, Scheme, Target, manifest::Manifest, progress::Quiet, recipe::FixedShapes};
use narthex_testkit::checkpoint::{tiny_bert_safetensors, tiny_llama_gguf};
use serde_json::{Value, json};

/// Compiles for real.
fn package(checkpoint: &Path, recipe: Recipe) -> (tempfile::TempDir, Manifest) {
    let out = tempfile::tempdir().unwrap();
    let job = support::job(checkpoint, recipe, out.path());
    let manifest = compile(job, &Quiet, &AtomicBool::new(false)).unwrap();
    (out, manifest)
}

/// The graphs, the tables and the length of the data file are the compile's own, in every scheme.
fn agrees(checkpoint: &Path) {
    let shapes = FixedShapes { context: 24, shorter: vec![], prefill: vec![8], buckets: vec![8] };
    let with_npu = |scheme| Recipe { fixed: Some(shapes.clone()), ..Recipe::new(scheme) };
    let npu = [Scheme::W8, Scheme::W4, Scheme::F16].map(with_npu);
    for recipe in npu.into_iter().chain([Scheme::W8, Scheme::F16, Scheme::F32].map(Recipe::new)) {
        let (folder, manifest) = package(checkpoint, recipe);
        let paper =
            paper::compile("tiny", &manifest.architecture.architecture().unwrap(), &manifest.recipe).unwrap();
        let name = checkpoint.display();
        assert_eq!(paper.data_bytes, manifest.files["model.onnx.data"].bytes, "{name}");
        assert_eq!(paper.tables, manifest.tables, "{name}");
        assert_eq!(paper.graphs.len(), manifest.graphs.len(), "{name}");
        for ((graph, entry), made) in paper.graphs.iter().zip(&manifest.graphs) {
            assert_eq!(entry, made, "{name}");
            assert!(
                graph.encode() == fs::read(folder.path().join(&made.file)).unwrap(),
                "{name} {}",
                made.file
            );
        }
    }
}

#[test]
fn paper_is_what_the_compile_makes() {
    let folder = tempfile::tempdir().unwrap();
    let families = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/families");
    let mut seen = 0;
    for family in fs::read_dir(&families).unwrap().map(|entry| entry.unwrap().path()) {
        if !family.is_dir() {
            continue;
        }
        let copy = folder.path().join(family.file_name().unwrap());
        fs::create_dir(&copy).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(family.join(file), copy.join(file)).unwrap();
        }
        fs::copy(families.join("tokenizer.json"), copy.join("tokenizer.json")).unwrap();
        agrees(&copy);
        seen += 1;
    }
    assert!(seen > 10, "{seen}");
    let (llama, bert) = (folder.path().join("tiny.gguf"), folder.path().join("bert"));
    fs::write(&llama, tiny_llama_gguf(7)).unwrap();
    fs::create_dir(&bert).unwrap();
    tiny_bert_safetensors(&bert, 7).unwrap();
    agrees(&llama);
    agrees(&bert);
}

#[test]
fn parameters_are_the_elements_of_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    tiny_bert_safetensors(folder.path(), 7).unwrap();
    let architecture = open(folder.path()).unwrap().architecture;
    let weights = narthex_testkit::checkpoint::tiny_bert_weights(7);
    let elements: usize = weights.iter().map(|weight| weight.values.len()).sum();
    assert_eq!(checkpoint::parameters(&architecture), elements as u64);
}

/// The settings of a Llama whose feed-forward parts are gated.
fn settings(class: &str, [hidden, inner, layers, heads, kv_heads, vocab]: [usize; 6], more: Value) -> Value {
    let mut config = json!({
        "architectures": [class], "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": vocab, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn outlook(config: &Value, targets: &[&str]) -> Outlook {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let targets: Vec<Target> = targets.iter().map(|target| target.parse().unwrap()).collect();
    Outlook::new(&checkpoint::architecture(folder.path()).unwrap(), &targets).unwrap()
}

#[test]
fn a_model_of_70_billion_is_planned() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let more = json!({"max_position_embeddings": 131_072, "rope_theta": 500_000.0, "rope_scaling": scaling});
    let config = settings("LlamaForCausalLM", [8192, 28672, 80, 64, 8, 128_256], more);
    let found = outlook(&config, &["qnn:x-elite", "openvino:npu"]);
    assert_eq!((found.parameters, found.longest), (70_553_706_496, 131_072));
    // Two tensors of eight heads of 128 in each of 80 layers, in single precision.
    assert_eq!(found.token_bytes(), 2 * 4 * 8 * 128 * 80);
    assert_eq!(found.npu_token_bytes * 2, found.token_bytes());
    for (scheme, least, most) in [
        (Scheme::W8, 75e9, 80e9),
        (Scheme::W4, 39e9, 43e9),
        (Scheme::F16, 141e9, 142e9),
        (Scheme::F32, 282e9, 283e9),
    ] {
        let bytes = found.scheme(scheme).unwrap().bytes as f64;
        assert!((least..most).contains(&bytes), "{scheme} {bytes}");
        for target in &found.scheme(scheme).unwrap().targets {
            if scheme == Scheme::F32 {
                assert!(!target.runs() && target.score.total < 50.0, "{target:?}");
            } else {
                // Its layers are divided, and each part is one that the NPU holds.
                assert!((1..=target.limit).contains(&target.graph_bytes), "{target:?}");
            }
        }
    }
}

#[test]
fn a_coder_of_32_billion_is_planned() {
    let more = json!({"max_position_embeddings": 32_768, "rope_theta": 1e6});
    let config = settings("Qwen2ForCausalLM", [5120, 27648, 64, 40, 8, 152_064], more);
    let found = outlook(&config, &["qnn:x-elite", "openvino:npu"]);
    assert_eq!(found.parameters, 32_763_876_352);
    // Its layers are divided, and each part is one that the NPU holds, but all of them are more than a program has.
    let scheme = found.scheme(Scheme::W4).unwrap();
    let target = &scheme.targets[0];
    assert!(
        matches!(&target.verdict, Verdict::Refused { reason } if reason.contains("15.0 GB")),
        "{target:?}"
    );
    assert!(scheme.bytes > 8 * target.limit && target.graph_bytes <= target.limit, "{target:?}");
    assert_eq!(target.score.total, 0.0, "{target:?}");
    // Each part has its own layers' cache, and the parts have all of it together.
    let (all, graphs) = target.held.split_last().unwrap();
    assert_eq!((all.limit, all.token_bytes), (15_000_000_000, found.npu_token_bytes));
    let largest = graphs.iter().map(|held| held.token_bytes).max().unwrap();
    assert!(all.bytes > all.limit && largest * 4 < found.npu_token_bytes, "{graphs:?}");
    // That is Hexagon's bound: Intel's driver has no such processes, and so takes it.
    let (scheme, best) = found.best(|_| true).unwrap();
    assert_eq!((scheme, best.target.to_string().as_str()), (Scheme::W8, "openvino:npu"));
    assert!(best.runs(), "{best:?}");
}

#[test]
fn what_an_npu_takes_is_scored_whole() {
    let more = json!({"max_position_embeddings": 8192, "rope_theta": 1e5, "tie_word_embeddings": true});
    let config = settings("LlamaForCausalLM", [576, 1536, 30, 9, 3, 49_152], more);
    let found = outlook(&config, &["qnn:x-elite"]);
    let (scheme, best) = found.best(|_| true).unwrap();
    assert_eq!((scheme, &best.verdict), (Scheme::W8, &Verdict::Whole));
    assert!(best.score.total > 99.9, "{best:?}");
    let refused = &found.scheme(Scheme::F32).unwrap().targets[0];
    assert!(matches!(&refused.verdict, Verdict::Refused { reason } if reason.contains("half precision")));
}
