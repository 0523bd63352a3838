//! The tiny checkpoints of every decoder family, and the reference implementation's logits for their tokens.
//!
//! `crates/checkpoint/tests/goldens/families.py` creates them.

use std::{fs, path::PathBuf};

use narthex_compile::{
    calibration::GraphRunner,
    vocab_subset::{Source, VocabSubset},
};
use narthex_spec::{Recipe, TokenId, recipe::FixedShapes};

use super::Package;

/// Names of the families whose layers are all dense, which are those of their folders.
pub(crate) const FAMILIES: [&str; 25] = [
    "llama",
    "mistral",
    "qwen2",
    "qwen2.5",
    "qwen3",
    "smollm3",
    "olmo2",
    "exaone4",
    "exaone4-window",
    "lfm2",
    "phi3",
    "phi3.5",
    "phi4-mini",
    "granite",
    "granite4",
    "stablelm",
    "stablelm2",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gpt2",
    "openelm",
    "chatglm3",
    "ernie4.5",
];

/// Names of the families with experts, which have no static variant.
pub(crate) const EXPERTS: [&str; 6] =
    ["qwen3-moe", "qwen3-moe-mixed", "gpt-oss", "gpt-oss-mxfp4", "lfm2-moe", "lfm2-moe-scaled"];

/// Returns the names of all families.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().chain(EXPERTS)
}

/// Number of tokens in each test.
pub(crate) const TOKENS: usize = 40;

const VOCAB: usize = 80;

/// A checkpoint's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Safetensors,
    Gguf,
}

/// Returns shapes of the static variant by which the tokens take several steps, with padding. Qualcomm's backend treats
/// more than 8 rows otherwise than fewer.
pub(crate) fn shapes() -> FixedShapes {
    FixedShapes { context: 48, shorter: vec![], prefill: vec![12], buckets: vec![16] }
}

/// Returns the tokens of the reference.
pub(crate) fn tokens() -> Vec<TokenId> {
    (0..TOKENS as u32).map(|i| (7 * i * i + 3 * i + 5) % VOCAB as u32).collect()
}

fn folder(family: &str) -> PathBuf {
    let goldens = "../checkpoint/tests/goldens/families";
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(goldens).join(family)
}

/// Returns true if a family has a checkpoint in a format.
pub(crate) fn comes_in(family: &str, format: Format) -> bool {
    format == Format::Safetensors || folder(family).join("model.gguf").is_file()
}

/// Returns the reference's logits after each token.
pub(crate) fn logits(family: &str) -> Vec<Vec<f32>> {
    rows(family, "logits.f32")
}

/// Returns the logits after each token from one of a family's files.
pub(crate) fn rows(family: &str, file: &str) -> Vec<Vec<f32>> {
    let bytes = fs::read(folder(family).join(file)).unwrap();
    let values: Vec<f32> =
        bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
    assert_eq!(values.len(), TOKENS * VOCAB);
    values.chunks_exact(VOCAB).map(<[f32]>::to_vec).collect()
}

/// Compiles a family's package, calibrated if there is a runner.
pub(crate) fn package(
    family: &str,
    format: Format,
    recipe: Recipe,
    runner: Option<&dyn GraphRunner>,
) -> Package {
    let source = folder(family);
    if format == Format::Gguf {
        return Package::with_runner(source.join("model.gguf"), recipe, runner);
    }
    let checkpoint = copy(family);
    Package::with_runner(checkpoint.path().to_owned(), recipe, runner)
}

/// Returns the tokens that [`pruned`] lists; it also keeps the three special ones.
pub(crate) fn listed() -> Vec<TokenId> {
    (3..VOCAB as TokenId).filter(|token| token % 3 != 1).collect()
}

/// Returns a family's package whose head is pruned to the listed tokens, and the same package with the whole head. No
/// token of their tokenizer is a single byte, because single bytes would be kept as well.
pub(crate) fn pruned(family: &str, recipe: &Recipe) -> [Package; 2] {
    let checkpoint = copy(family);
    let path = checkpoint.path().join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let doubled = |(text, id): (&String, &serde_json::Value)| match text.len() {
        1 => (text.repeat(2), id.clone()),
        _ => (text.clone(), id.clone()),
    };
    *vocab = vocab.iter().map(doubled).collect();
    fs::write(&path, tokenizer.to_string()).unwrap();
    let vocabulary = VocabSubset { source: Source::List(listed()), most: None };
    [Some(&vocabulary), None]
        .map(|vocabulary| Package::of(checkpoint.path(), recipe.clone(), (None, vocabulary)))
}

/// Returns rows without the tokens that a pruned model never samples.
pub(crate) fn given(rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let tokens: Vec<usize> = (0..3).chain(listed().into_iter().map(|token| token as usize)).collect();
    rows.iter().map(|row| tokens.iter().map(|&token| row[token]).collect()).collect()
}

/// Returns a copy of a family's folder.
fn copy(family: &str) -> tempfile::TempDir {
    let checkpoint = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(folder(family).join(name), checkpoint.path().join(name)).unwrap();
    }
    fs::copy(folder("tokenizer.json"), checkpoint.path().join("tokenizer.json")).unwrap();
    checkpoint
}

/// Returns the elements of a tensor of a family's folder, which has them in half precision.
pub(crate) fn tensor(family: &str, name: &str) -> Vec<f32> {
    let bytes = fs::read(folder(family).join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let [start, end] = [0, 1].map(|end| tensors[name]["data_offsets"][end].as_u64().unwrap() as usize);
    let elements = bytes[header + start..header + end].chunks_exact(2);
    elements.map(|element| half::f16::from_le_bytes([element[0], element[1]]).to_f32()).collect()
}

/// Returns a family's package in which all elements of the tensors with `name` in their name are `value`.
pub(crate) fn with_values(family: &str, recipe: Recipe, (name, value): (&str, f32)) -> Package {
    let checkpoint = copy(family);
    let path = checkpoint.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    for (_, tensor) in tensors.as_object().unwrap().iter().filter(|(key, _)| key.contains(name)) {
        let at = |end: usize| header + tensor["data_offsets"][end].as_u64().unwrap() as usize;
        let half = half::f16::from_f32(value).to_le_bytes();
        bytes[at(0)..at(1)].chunks_exact_mut(2).for_each(|element| element.copy_from_slice(&half));
    }
    fs::write(&path, bytes).unwrap();
    Package::with_runner(checkpoint.path().to_owned(), recipe, None)
}
