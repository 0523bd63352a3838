//! Plans of models that are too large for tests to load.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use narthex_catalog::index::Catalog;
use narthex_check::Verdict;
use narthex_gateway::plan::{ModelEstimate, TowerEstimate};
use narthex_spec::{Scheme, Target};
use serde_json::{Value, json};

/// Returns the settings of a Llama with gated feed-forward layers.
fn settings(class: &str, [hidden, inner, layers, heads, kv_heads, vocab]: [usize; 6], more: Value) -> Value {
    let mut config = json!({
        "architectures": [class], "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": vocab, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn estimate(config: &Value, targets: &[&str]) -> ModelEstimate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let targets: Vec<Target> = targets.iter().map(|target| target.parse().unwrap()).collect();
    ModelEstimate::new(&narthex_checkpoint::architecture(folder.path()).unwrap(), &targets).unwrap()
}

#[test]
fn a_model_of_70_billion_is_planned() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let more = json!({"max_position_embeddings": 131_072, "rope_theta": 500_000.0, "rope_scaling": scaling});
    let config = settings("LlamaForCausalLM", [8192, 28672, 80, 64, 8, 128_256], more);
    let found = estimate(&config, &["qnn:x-elite", "openvino:npu"]);
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
                // The layers are divided into graphs, each within the NPU's limit.
                assert!((1..=target.limit).contains(&target.graph_bytes), "{target:?}");
            }
        }
    }
}

#[test]
fn a_coder_of_32_billion_is_planned() {
    let more = json!({"max_position_embeddings": 32_768, "rope_theta": 1e6});
    let config = settings("Qwen2ForCausalLM", [5120, 27648, 64, 40, 8, 152_064], more);
    let found = estimate(&config, &["qnn:x-elite", "openvino:npu"]);
    assert_eq!(found.parameters, 32_763_876_352);
    // The layers are divided into graphs, each within the NPU's limit, but together they exceed the limit of a process.
    let scheme = found.scheme(Scheme::W4).unwrap();
    let target = &scheme.targets[0];
    assert!(
        matches!(&target.verdict, Verdict::Refused { reason } if reason.contains("15.0 GB")),
        "{target:?}"
    );
    assert!(scheme.bytes > 8 * target.limit && target.graph_bytes <= target.limit, "{target:?}");
    assert_eq!(target.score.total, 0.0, "{target:?}");
    // Each graph has the KV cache of its own layers; the last entry has the cache of all layers.
    let (all, graphs) = target.held.split_last().unwrap();
    assert_eq!((all.limit, all.token_bytes), (15_000_000_000, found.npu_token_bytes));
    let largest = graphs.iter().map(|held| held.token_bytes).max().unwrap();
    assert!(all.bytes > all.limit && largest * 4 < found.npu_token_bytes, "{graphs:?}");
    // The limit of a process applies only to Hexagon, so Intel's NPU runs the model.
    let (scheme, best) = found.best(|_| true).unwrap();
    assert_eq!((scheme, best.target.to_string().as_str()), (Scheme::W8, "openvino:npu"));
    assert!(best.runs(), "{best:?}");
}

#[test]
fn what_an_npu_takes_is_scored_whole() {
    let more = json!({"max_position_embeddings": 8192, "rope_theta": 1e5, "tie_word_embeddings": true});
    let config = settings("LlamaForCausalLM", [576, 1536, 30, 9, 3, 49_152], more);
    let found = estimate(&config, &["qnn:x-elite"]);
    let (scheme, best) = found.best(|_| true).unwrap();
    assert_eq!((scheme, &best.verdict), (Scheme::W8, &Verdict::Whole));
    assert!(best.score.total > 99.9, "{best:?}");
    let refused = &found.scheme(Scheme::F32).unwrap().targets[0];
    assert!(matches!(&refused.verdict, Verdict::Refused { reason } if reason.contains("half precision")));
}

#[test]
fn the_audio_tower_is_part_of_a_plan() {
    let catalog = Catalog::builtin().unwrap();
    let mut config = catalog.get(&"gemma3n:e2b".parse().unwrap()).unwrap().config.clone();
    let estimate = |config| {
        let architecture = narthex_checkpoint::architecture_from_config(config, None).unwrap();
        ModelEstimate::new(&architecture, &[]).unwrap()
    };
    let whole = estimate(config.clone());
    config.as_object_mut().unwrap().remove("audio_config");
    let deaf = estimate(config);
    let parameters = 684_694_048;
    assert_eq!(whole.parameters - deaf.parameters, parameters);
    let structure = "12 conformer layers, width 1536, 188 rows".to_owned();
    let tower = TowerEstimate { structure, parameters };
    assert_eq!((whole.audio.as_ref(), deaf.audio.as_ref()), (Some(&tower), None));
    // Of the embedding of 128 tokens, two rows are stored, and of the projections of positions, the keys of 13 distances.
    let stored = parameters - 126 * 1536 - 12 * 1536 * (1536 - 13);
    let bytes = |estimate: &ModelEstimate| estimate.scheme(Scheme::F32).unwrap().bytes;
    let tower = (bytes(&whole) - bytes(&deaf)) as f64 / 4.0 / stored as f64;
    assert!((1.0..1.01).contains(&tower), "{tower}");
    let towers = |estimate: &ModelEstimate| estimate.scheme(Scheme::F32).unwrap().tower_bytes;
    assert_eq!(towers(&whole) - towers(&deaf), bytes(&whole) - bytes(&deaf));
    assert!(towers(&deaf) > 0, "the vision tower remains");
}

#[test]
fn the_vision_tower_is_part_of_a_plan() {
    let catalog = Catalog::builtin().unwrap();
    let check = |name: &str, expect: TowerEstimate, stored: u64| {
        let config = catalog.get(&name.parse().unwrap()).unwrap().config.clone();
        let estimate = |config| {
            let architecture = narthex_checkpoint::architecture_from_config(config, None).unwrap();
            ModelEstimate::new(&architecture, &[]).unwrap()
        };
        let whole = estimate(config.clone());
        let mut blind = config;
        blind.as_object_mut().unwrap().remove("vision_config");
        let blind = estimate(blind);
        assert_eq!(whole.parameters - blind.parameters, expect.parameters, "{name}");
        let bytes = |estimate: &ModelEstimate| estimate.scheme(Scheme::F32).unwrap().bytes;
        let tower = (bytes(&whole) - bytes(&blind)) as f64 / 4.0 / stored as f64;
        assert!((1.0..1.01).contains(&tower), "{name}: {tower}");
        assert_eq!((whole.vision, blind.vision), (Some(expect), None), "{name}");
    };
    let tower = |structure: &str, parameters| TowerEstimate { structure: structure.to_owned(), parameters };
    check("gemma3:4b", tower("27 layers, width 1152, 896 × 896 pixels, 256 rows", 419_816_304), 419_816_304);
    check("smolvlm:256m", tower("12 layers, width 768, 512 × 512 pixels, 64 rows", 93_510_912), 93_510_912);
    // Of the embedding of 128 tokens, one row is stored.
    let mobilenet = tower("84 blocks, width 2048, 768 × 768 pixels, 257 rows", 298_587_456);
    check("gemma3n:e2b", mobilenet, 298_587_456 - 127 * 2048);
}
