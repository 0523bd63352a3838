//! Checkpoints of every family: both formats yield the same architecture, and a refusal names the wrong setting and
//! writes nothing.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{fs, path::PathBuf, sync::atomic::AtomicBool};

use narthex_checkpoint::open;
use narthex_compile::pipeline::compile;
use narthex_spec::{
    Recipe, Scheme,
    arch::{Architecture, KeyHeadOrder, Mixer},
    progress::Quiet,
    recipe::FixedShapes,
};
use serde_json::{Value, json};

use crate::support::job;

const FAMILIES: [&str; 34] = [
    "chatglm3",
    "ernie4.5",
    "exaone4",
    "exaone4-window",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "gpt2",
    "granite",
    "granite-4-h",
    "granite-4-h-moe",
    "granite4",
    "lfm2",
    "lfm2-moe",
    "lfm2-moe-scaled",
    "llama",
    "mistral",
    "olmo2",
    "openelm",
    "phi3",
    "phi3.5",
    "phi4-mini",
    "qwen2",
    "qwen2.5",
    "qwen3",
    "qwen3-moe",
    "qwen3-moe-mixed",
    "qwen3.5",
    "smollm3",
    "stablelm",
    "stablelm2",
];

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/goldens/families").join(name)
}

/// Copies a family's folder with changed settings.
pub(crate) fn copy(family: &str, changes: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config: Value =
        serde_json::from_slice(&fs::read(golden(family).join("config.json")).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let files = [golden(family).join("model.safetensors"), golden("tokenizer.json")];
    for file in files {
        fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    folder
}

#[test]
fn every_folder_of_goldens_is_a_family_that_is_read() {
    let mut folders: Vec<String> = fs::read_dir(golden(""))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    folders.sort_unstable();
    assert_eq!(folders, FAMILIES);
}

#[test]
fn both_formats_give_the_same_layers() {
    let layers = |path: &std::path::Path| match open(path).map(|checkpoint| checkpoint.architecture) {
        Ok(Architecture::Decoder(arch)) => arch,
        Ok(_) => panic!("another model"),
        Err(error) => panic!("{}: {error}", path.display()),
    };
    for family in FAMILIES {
        let file = golden(family).join("model.gguf");
        // Mistral's GGUF files state the architecture `llama`. The frequency divisors in Llama's GGUF file are rounded
        // and replace another kind of scaling.
        if !file.is_file() || ["llama", "mistral"].contains(&family) {
            continue;
        }
        let (mut folder, mut gguf) = (layers(copy(family, &json!({})).path()), layers(&file));
        // The folder states fractions of a normal distribution, the GGUF file its quantiles in single precision.
        for arch in [&mut folder, &mut gguf] {
            let cutoffs = arch.mlps_mut().filter_map(|mlp| mlp.cutoff.as_mut());
            cutoffs.for_each(|cutoff| *cutoff = (*cutoff * 1e5).round());
        }
        // GGUF has no key for the scale of Gemma's scores. The scale from its head size is twice that of the folder,
        // and the weights of its queries are halved instead.
        if ["gemma2", "gemma3"].contains(&family) {
            for attention in folder.attentions_mut() {
                attention.scale = attention.scale.map(|scale| scale * 2.0);
            }
        }
        // llama.cpp's files have the heads of values in another order.
        for layer in &mut gguf.layers {
            if let Mixer::DeltaRule(rule) = &mut layer.mixer {
                rule.key_order = KeyHeadOrder::Grouped;
            }
        }
        assert_eq!(folder.family, gguf.family, "{family}");
        assert_eq!(folder.layers, gguf.layers, "{family}");
        assert_eq!(
            (folder.norm, folder.switch(), folder.tied_head),
            (gguf.norm, gguf.switch(), gguf.tied_head)
        );
        assert_eq!((folder.embed_scale, folder.logit_cap), (gguf.embed_scale, gguf.logit_cap), "{family}");
        assert_eq!((folder.altup, folder.per_layer), (gguf.altup, gguf.per_layer), "{family}");
    }
}

/// Checks that a compile fails with a message that contains all of the words, and writes no package.
fn refused(folder: &tempfile::TempDir, words: &[&str]) {
    let out = tempfile::tempdir().unwrap();
    let job = job(folder.path(), Recipe::new(Scheme::W8), out.path());
    let error = compile(job, &Quiet, &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error} lacks one of {words:?}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "{error}");
}

#[test]
fn settings_that_contradict_the_weights_are_named() {
    let check = |family: &str, changes: Value, words: &[&str]| refused(&copy(family, &changes), words);
    let wrong = "wrong shape: expected";
    check(
        "qwen3",
        json!({"head_dim": 16}),
        &[
            "model.safetensors: tensor layers.0.attn.q_proj.weight (named model.layers.0.self_attn.q_proj.weight in this file)",
            wrong,
            "[64, 64]",
            "[128, 64]",
        ],
    );
    check(
        "phi3",
        json!({"intermediate_size": 64}),
        &[
            "layers.0.mlp.gate_proj.weight (a part of model.layers.0.mlp.gate_up_proj.weight in this file)",
            wrong,
            "[128, 64], found [64, 64]",
        ],
    );
    check(
        "gpt2",
        json!({"n_inner": 64}),
        &["layers.0.mlp.up_proj", "(named transformer.h.0.mlp.c_fc.", wrong, "[64], found [32]"],
    );
    check(
        "chatglm3",
        json!({"multi_query_group_num": 1}),
        &["(a part of transformer.encoder.layers.0.self_attention.query_key_value.", wrong],
    );
    check("openelm", json!({"num_query_heads": [2]}), &["config.json", "2 num_query_heads", "[1, 2, 2]"]);
    check(
        "stablelm2",
        json!({"use_parallel_residual": false}),
        &["layers.0.mlp_norm", "post_attention_layernorm"],
    );
    check("ernie4.5", json!({"use_bias": false}), &["unsupported tensor: found model.layers.0."]);
    check("ernie4.5", json!({"moe_num_experts": 64}), &["moe_num_experts: found 64", "a dense model"]);
    let experts = json!({"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe"});
    check("ernie4.5", experts, &["config.json: unsupported architecture: found Ernie4_5_MoeForCausalLM"]);
    check(
        "qwen3-moe",
        json!({"moe_intermediate_size": 32}),
        &["layers.0.mlp.experts.0.gate_proj", wrong, "[32, 64]"],
    );
    check(
        "qwen3-moe",
        json!({"num_local_experts": 5}),
        &["layers.0.mlp.router.weight (named model.layers.0.mlp.gate.weight", wrong],
    );
    check(
        "qwen3-moe",
        json!({"num_experts_per_tok": 7}),
        &["a number of experts for each token from 1 to 6, found 7"],
    );
    check("qwen3-moe", json!({"hidden_act": "gelu"}), &["activation of experts: found Gelu, expected SiLU"]);
    check("gemma2", json!({"num_hidden_layers": 3}), &["no tensor for layers.2."]);
    check("qwen2", json!({"num_hidden_layers": 1}), &["unsupported tensor: found model.layers.1."]);
    check("gpt2", json!({"activation_function": "xielu"}), &["hidden_act: found xielu"]);
    check("gemma3", json!({"hidden_activation": "xielu"}), &["hidden_act: found xielu"]);
    check("phi3.5", json!({"rope_parameters": {"rope_type": "longrope"}}), &["config.json", "short_factor"]);
    check("smollm3", json!({"no_rope_layers": [1]}), &["no_rope_layers for 4 layers", "found 1"]);
    check(
        "smollm3",
        json!({"architectures": ["SmolLM4ForCausalLM"]}),
        &["config.json: unsupported architecture: found SmolLM4ForCausalLM"],
    );
}

#[test]
fn layers_without_a_static_variant_are_refused_with_a_next_step() {
    for (family, expected) in [
        ("qwen3-moe", "a mixture of experts with fixed shapes"),
        ("qwen3.5", "the gated delta rule of layer 0 with fixed shapes"),
        ("granite-4-h", "the Mamba-2 recurrence of layer 0 with fixed shapes"),
    ] {
        let out = tempfile::tempdir().unwrap();
        let shapes = FixedShapes { context: 24, shorter: vec![], prefill: vec![8], buckets: vec![8] };
        let recipe = Recipe { fixed: Some(shapes), ..Recipe::new(Scheme::W8) };
        let folder = copy(family, &json!({}));
        let error = compile(job(folder.path(), recipe, out.path()), &Quiet, &AtomicBool::new(false));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("for the CPU"), "{error}");
    }
}
