//! Every encoder family and head compared with the results of the reference implementation (`goldens/encoders.py`), in
//! both variants.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;

use half::f16;
use narthex_device::{
    encoder::{DynamicEncoder, EncoderOptions},
    ep::Device,
};
use narthex_engine::encoder::{Batching, Encoder, Text};
use narthex_graph::Graph;
use narthex_spec::{
    Calibration, Recipe, Scheme, TokenId, Variant,
    arch::{EncoderHead, Structure},
    recipe::FixedShapes,
};
use narthex_testkit::checkpoint::{Gguf, GgufTensor, GgufType, Meta, word_piece_meta};
use serde_json::{Value, json};

use crate::support::{
    CpuRunner, Package,
    encoders::{Golden, Head, served},
    fixed::open_encoder,
    relative, runtime, texts,
};

/// Maximum relative L2 distances: in single precision, and in half precision or 8-bit weights with exact activations.
const SINGLE: f32 = 1e-3;
const HALF: f32 = 0.01;

/// Schemes with integer activations, with the maximum distance to the dynamic variant.
const INTEGERS: [(Scheme, f32); 3] = [(Scheme::W8A16, 0.015), (Scheme::W8A8, 0.15), (Scheme::W4A16, 0.015)];

/// Schemes for NPUs with activations in floats.
const SCHEMES: [Scheme; 3] = [Scheme::W8, Scheme::W4, Scheme::F16];

fn shapes() -> FixedShapes {
    FixedShapes { context: 64, shorter: vec![], prefill: vec![], buckets: vec![16, 64] }
}

fn package(golden: &Golden, head: Head, scheme: Scheme) -> Package {
    let folder = golden.checkpoint(head);
    let fixed = (scheme != Scheme::F32).then(shapes);
    let recipe = Recipe { accuracy_level: 0, fixed, ..Recipe::new(scheme) };
    Package::with_runner(folder.path().to_owned(), recipe, None)
}

/// Returns each text's rows from one run of all texts.
fn together(encoder: &mut dyn Encoder, texts: &[Text<'_>]) -> Vec<Vec<f32>> {
    let output = encoder.run(texts).unwrap();
    let (rows, mut data) = (encoder.limits().rows, output.data.as_slice());
    let take = |text: &Text<'_>| {
        let (own, rest) = data.split_at(rows.of(text) * output.width);
        data = rest;
        own.to_vec()
    };
    let found = texts.iter().map(take).collect();
    assert!(data.is_empty());
    found
}

/// Compares rows one by one. Rows of a single number are compared together, because one number may be near zero.
fn agree(what: &str, found: &[Vec<f32>], expected: &[Vec<f32>], bound: f32) {
    if expected.iter().all(|row| row.len() == 1) && expected.len() > 1 {
        return agree(what, &[found.concat()], &[expected.concat()], bound);
    }
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let distance = relative(found, expected);
        assert!(distance <= bound, "{what}, text {index}: {distance}");
    }
}

#[test]
fn every_family_and_head_computes_what_the_reference_does() {
    for golden in Golden::every() {
        for head in golden.heads() {
            let what = format!("{} {head:?}", golden.family);
            let (inputs, expected) = golden.texts(head);
            let texts = texts(&inputs);
            let package = package(&golden, head, Scheme::F32);
            let mut encoder = package.encoder(&Device::Cpu);
            let batching = match head {
                Head::Max | Head::Last => Batching::Padded,
                _ => Batching::Packed,
            };
            assert_eq!(encoder.limits().batching, batching, "{what}");
            agree(&what, &together(&mut encoder, &texts), &expected, SINGLE);
            let alone = |text: &Text<'_>| together(&mut encoder, &[*text]).remove(0);
            agree(&what, &texts.iter().map(alone).collect::<Vec<_>>(), &expected, SINGLE);
        }
    }
}

/// Eight-bit activations are rounded in the operators of Narthex, which merge layers with the norms after them.
#[test]
fn eight_bit_activations_give_nearly_the_same_for_every_family_and_head() {
    for golden in Golden::every() {
        for head in golden.heads() {
            let what = format!("{} {head:?}", golden.family);
            let (inputs, expected) = golden.texts(head);
            let texts = texts(&inputs);
            let folder = golden.checkpoint(head);
            let package = Package::with_runner(folder.path().to_owned(), Recipe::new(Scheme::W8), None);
            let mut encoder = package.encoder(&Device::Cpu);
            let found = together(&mut encoder, &texts);
            // The scores of the tiny DistilBERT are below 0.5, with the same absolute error as those of the others.
            let bound = if matches!(head, Head::Score | Head::Labels) { 0.2 } else { 0.1 };
            agree(&what, &found, &expected, bound);
            if encoder.limits().batching == Batching::Packed {
                let alone = |text: &Text<'_>| together(&mut encoder, &[*text]).remove(0);
                assert_eq!(texts.iter().map(alone).collect::<Vec<_>>(), found, "{what}");
            }
        }
    }
}

#[test]
fn the_fixed_variant_computes_what_the_dynamic_one_does() {
    for golden in Golden::every() {
        for (head, scheme) in golden.heads().flat_map(|head| SCHEMES.map(|scheme| (head, scheme))) {
            let what = format!("{} {head:?} {scheme}", golden.family);
            let (inputs, reference) = golden.texts(head);
            let texts = texts(&inputs);
            let package = package(&golden, head, scheme);
            let expected = together(&mut package.encoder(&Device::Cpu), &texts);
            agree(&what, &together(&mut open_encoder(&package, &Device::Cpu), &texts), &expected, HALF);
            // A wrong weight would exceed these bounds; rounding to 8 bits does not.
            match scheme {
                Scheme::F16 => agree(&what, &expected, &reference, HALF),
                Scheme::W8 => agree(&what, &expected, &reference, 0.1),
                _ => {}
            }
        }
    }
}

/// Integer activations are rounded to 16 bits, or to 8 where they are enough.
#[test]
fn integer_activations_compute_what_the_dynamic_variant_does() {
    for golden in Golden::every() {
        let heads = golden.heads().filter(|head| matches!(head, Head::Mean | Head::Score | Head::Masked));
        let heads = heads.flat_map(|head| INTEGERS.map(|(scheme, bound)| (head, scheme, bound)));
        for (head, scheme, bound) in heads {
            let what = format!("{} {head:?} {scheme}", golden.family);
            let folder = golden.checkpoint(head);
            let recipe = Recipe { accuracy_level: 0, fixed: Some(shapes()), ..Recipe::new(scheme) };
            let package = Package::with_runner(folder.path().to_owned(), recipe, Some(&CpuRunner));
            assert_eq!(package.manifest.recipe.calibration, Calibration::Standard);
            let (inputs, _) = golden.texts(head);
            let texts = texts(&inputs);
            let expected = together(&mut package.encoder(&Device::Cpu), &texts);
            let served =
                |rows: Vec<Vec<f32>>| rows.into_iter().map(|row| served(head, row)).collect::<Vec<_>>();
            let found = served(together(&mut open_encoder(&package, &Device::Cpu), &texts));
            agree(&what, &found, &served(expected), bound);
            for entry in package.manifest.graphs.iter().filter(|entry| entry.variant == Variant::Static) {
                let path = package.folder.path().join(&entry.file);
                let graph = Graph::decode(&fs::read(path).unwrap()).unwrap();
                let count = |op: &str| graph.nodes.iter().filter(|node| node.op == op).count();
                assert!(count("QuantizeLinear") >= 2, "{what} {}", entry.file);
            }
        }
    }
}

#[test]
fn without_a_layer_an_encoder_is_the_model_of_the_others() {
    for golden in Golden::every() {
        let masked = golden.heads().find(|head| *head == Head::Masked);
        for head in [Head::Mean].into_iter().chain(masked) {
            let recipe = Recipe { accuracy_level: 0, fixed: Some(shapes()), ..Recipe::new(Scheme::W8) };
            let alone = golden.second_layer(head);
            let alone = Package::make(alone.path().to_owned(), recipe.clone());
            let without = Recipe { drop_layers: Some("0".parse().unwrap()), ..recipe };
            let dropped = Package::make(golden.checkpoint(head).path().to_owned(), without);
            assert_eq!(dropped.manifest.architecture, alone.manifest.architecture);
            let (inputs, whole) = golden.texts(head);
            let texts = texts(&inputs);
            let expected = together(&mut alone.encoder(&Device::Cpu), &texts);
            assert_eq!(together(&mut dropped.encoder(&Device::Cpu), &texts), expected, "{}", golden.family);
            agree(
                golden.family,
                &together(&mut open_encoder(&dropped, &Device::Cpu), &texts),
                &expected,
                HALF,
            );
            assert!(relative(&expected.concat(), &whole.concat()) > HALF, "{}", golden.family);
        }
    }
}

#[test]
fn a_second_segment_changes_rows_of_models_with_segments() {
    for (family, differs) in [("bert", true), ("mobilebert", true), ("distilbert", false), ("roberta", false)]
    {
        let golden = Golden::read(family);
        let mut encoder = package(&golden, Head::Score, Scheme::F32).encoder(&Device::Cpu);
        let tokens: Vec<TokenId> = (5..20).collect();
        let one = encoder.run(&[Text::of(&tokens)]).unwrap().data;
        let two = encoder.run(&[Text { second: 7, ..Text::of(&tokens) }]).unwrap().data;
        assert_eq!(one != two, differs, "{family}");
    }
}

#[test]
fn rows_that_are_not_there_cannot_be_asked_for() {
    let golden = Golden::read("bert");
    let mut encoder = package(&golden, Head::Masked, Scheme::F32).encoder(&Device::Cpu);
    let error = encoder.run(&[Text { requested: &[2], ..Text::of(&[5, 6]) }]).unwrap_err().to_string();
    assert!(error.contains("the row of token 2 is requested for a text of 2 tokens"), "{error}");
    assert!(encoder.run(&[Text::of(&[5, 6])]).unwrap().data.is_empty());
}

#[test]
fn a_package_s_number_of_labels_is_not_believed() {
    let golden = Golden::read("bert");
    let mut package = package(&golden, Head::Score, Scheme::F32);
    let Structure::Encoder(arch) = &mut package.manifest.architecture else { panic!("no encoder") };
    arch.head = EncoderHead::Score { labels: usize::MAX, dense: None };
    let options = EncoderOptions { threads: 1, max_batch_tokens: 1000, packed_weights: None };
    let folder = package.folder.path();
    let opened = DynamicEncoder::open(runtime(), folder, &package.manifest, &Device::Cpu, &options);
    let error = opened.err().expect("it was opened").to_string();
    assert!(error.contains("1 to 1048576 labels"), "{error}");
}

#[test]
fn files_of_sentence_transformers_make_any_class_an_embedding_model() {
    let golden = Golden::read("roberta");
    let folder = golden.checkpoint(Head::Masked);
    let modules = json!([{"type": "s.models.Transformer", "path": ""}, {"type": "s.models.Pooling", "path": "1_Pooling"}]);
    std::fs::write(folder.path().join("modules.json"), modules.to_string()).unwrap();
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    let pooling = json!({"pooling_mode_cls_token": true});
    std::fs::write(folder.path().join("1_Pooling/config.json"), pooling.to_string()).unwrap();
    let package = Package::with_runner(folder.path().to_owned(), Recipe::new(Scheme::F32), None);
    let (inputs, _) = golden.texts(Head::Mean);
    let texts = texts(&inputs);
    let found = together(&mut package.encoder(&Device::Cpu), &texts);
    agree("cls", &found, &golden.pooled("cls"), SINGLE);
}

#[test]
fn a_gguf_file_of_nomic_s_family_is_the_same_model() {
    let golden = Golden::read("nomic");
    let folder = golden.checkpoint(Head::Mean);
    let read = |file: &str| std::fs::read(folder.path().join(file)).unwrap();
    let (config, tokenizer) = (json_of(&read("config.json")), json_of(&read("tokenizer.json")));
    let file = folder.path().join("nomic.gguf");
    std::fs::write(&file, nomic_gguf(&config, &tokenizer, &read("model.safetensors")).to_bytes()).unwrap();

    let package = Package::with_runner(file, Recipe::new(Scheme::F32), None);
    let (inputs, mut expected) = golden.texts(Head::Mean);
    let texts = texts(&inputs);
    let mut found = together(&mut package.encoder(&Device::Cpu), &texts);
    // Vectors of GGUF files have unit length.
    for row in found.iter_mut().chain(&mut expected) {
        let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
        row.iter_mut().for_each(|value| *value /= length);
    }
    agree("gguf", &found, &expected, SINGLE);
}

fn json_of(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// Returns the file that llama.cpp's converter writes of a checkpoint.
fn nomic_gguf(config: &Value, tokenizer: &Value, weights: &[u8]) -> Gguf {
    let count = |key: &str| Meta::U32(config[key].as_u64().unwrap() as u32);
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocab.len()];
    for (token, id) in vocab {
        tokens[id.as_u64().unwrap() as usize].clone_from(token);
    }
    let mut meta = vec![
        ("general.architecture", Meta::Text("nomic-bert".into())),
        ("nomic-bert.block_count", count("num_hidden_layers")),
        ("nomic-bert.context_length", count("max_position_embeddings")),
        ("nomic-bert.embedding_length", count("hidden_size")),
        ("nomic-bert.feed_forward_length", count("intermediate_size")),
        ("nomic-bert.attention.head_count", count("num_attention_heads")),
        ("nomic-bert.attention.layer_norm_epsilon", Meta::F32(1e-12)),
        ("nomic-bert.attention.causal", Meta::Bool(false)),
        ("nomic-bert.pooling_type", Meta::U32(1)),
        ("nomic-bert.rope.freq_base", Meta::F32(1000.0)),
    ];
    meta.extend(word_piece_meta(&tokens));

    let names = [
        ("encoder.layers", "blk"),
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("emb_ln", "token_embd_norm"),
        ("attn.Wqkv", "attn_qkv"),
        ("attn.out_proj", "attn_output"),
        ("norm1", "attn_output_norm"),
        ("mlp.fc11", "ffn_up"),
        ("mlp.fc12", "ffn_gate"),
        ("mlp.fc2", "ffn_down"),
        ("norm2", "layer_output_norm"),
    ];
    let length = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let (header, data) = weights[8..].split_at(length);
    let header = json_of(header);
    let tensors = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    let tensors = tensors.map(|(name, entry)| {
        let numbers = |key: &str| -> Vec<usize> { serde_json::from_value(entry[key].clone()).unwrap() };
        let offsets = numbers("data_offsets");
        let halves = data[offsets[0]..offsets[1]].chunks_exact(2);
        let values: Vec<f32> = halves.map(|half| f16::from_le_bytes([half[0], half[1]]).to_f32()).collect();
        let name = names.iter().fold(name.clone(), |name, (file, gguf)| name.replace(file, gguf));
        let kind = GgufType::F32;
        GgufTensor { name, shape: numbers("shape"), kind: kind as u32, bytes: kind.encode(&values) }
    });
    Gguf::new(meta, tensors.collect())
}
