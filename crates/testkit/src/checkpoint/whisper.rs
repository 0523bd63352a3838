//! A tiny Whisper whose transcript does not depend on the speech: the row of a position is the embedding of the token
//! that follows it, and the decoder's layers add nothing.

use std::{fs, io, path::Path};

use narthex_engine::sample::SplitMix64;
use serde_json::{Value, json};

use super::{HfTensor, safetensors_bytes};

/// Width of both residual streams.
const WIDTH: usize = 64;
/// Mel bands, frames and rows of a window, as in Whisper.
const BINS: usize = 80;
const ROWS: usize = 1500;
/// Maximum length of the decoder's sequence.
const CONTEXT: usize = 48;
/// Control tokens, after the 256 bytes.
const CONTROL: [&str; 10] = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
];
/// Token of the timestamp 0.00.
const TIMESTAMP: usize = 256 + CONTROL.len();
const VOCAB: usize = TIMESTAMP + 1501;

/// Writes a Whisper into `folder` whose transcript of every window without earlier text is `text` from 0 to 1.5 seconds, in
/// German.
pub fn tiny_whisper_safetensors(folder: &Path, text: &str) -> io::Result<()> {
    write(folder, text, None)
}

/// Writes a Whisper like [`tiny_whisper_safetensors`] that may begin with another letter than the text. The first letter of
/// the text has a probability of about 0.6, but the second letter then has one of about 0.5. `other` has a probability of
/// about 0.4, and the second letter is certain after it: the likeliest transcript begins with `other`.
pub fn tiny_whisper_with_choice(folder: &Path, text: &str, other: u8) -> io::Result<()> {
    write(folder, text, Some(other))
}

fn write(folder: &Path, text: &str, other: Option<u8>) -> io::Result<()> {
    let config = json!({
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "vocab_size": VOCAB,
        "d_model": WIDTH, "num_mel_bins": BINS, "encoder_layers": 1, "encoder_attention_heads": 2,
        "encoder_ffn_dim": WIDTH, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": WIDTH,
        "max_source_positions": ROWS, "max_target_positions": CONTEXT, "activation_function": "gelu",
    });
    let generation = json!({"is_multilingual": true, "alignment_heads": [[0, 1]], "suppress_tokens": [1, 2]});
    fs::write(folder.join("config.json"), config.to_string())?;
    fs::write(folder.join("generation_config.json"), generation.to_string())?;
    fs::write(folder.join("tokenizer.json"), tokenizer().to_string())?;
    fs::write(folder.join("model.safetensors"), safetensors_bytes(&tensors(text, other)))
}

/// Index of the position whose row decides on the first letter.
const CHOICE: usize = 3;

/// Difference between the products of two letters with a row that makes the first one 1.5 times as likely.
const PREFERENCE: f32 = 0.3;

/// Returns the token that follows each position.
fn script(text: &str) -> Vec<usize> {
    // The start, the language and the task come before the transcript.
    let mut tokens = vec![259, 261, TIMESTAMP];
    tokens.extend(text.bytes().map(usize::from));
    tokens.extend([TIMESTAMP + 75, 256]);
    tokens.resize(CONTEXT, 256);
    tokens
}

fn tensors(text: &str, other: Option<u8>) -> Vec<HfTensor> {
    let mut random = SplitMix64::new(7);
    let mut signs = |count: usize, size: f32| -> Vec<f32> {
        (0..count).map(|_| if random.next_u64() & 1 == 0 { size } else { -size }).collect()
    };
    let embedding = signs(VOCAB * WIDTH, 0.5);
    let positions = script(text).into_iter().flat_map(|token| {
        embedding[token * WIDTH..][..WIDTH].iter().map(|x| x * 100.0).collect::<Vec<f32>>()
    });
    let mut positions: Vec<f32> = positions.collect();
    if let Some(other) = other.map(usize::from) {
        let row = |token: usize| &embedding[token * WIDTH..][..WIDTH];
        let letters = &script(text)[CHOICE..];
        let [choice, next] = choice([row(letters[0]), row(letters[1]), row(other)]);
        positions[CHOICE * WIDTH..][..WIDTH].copy_from_slice(&choice);
        positions[(CHOICE + 1) * WIDTH..][..WIDTH].copy_from_slice(&next);
    }
    let mut tensors = vec![
        tensor("decoder.embed_tokens.weight", &[VOCAB, WIDTH], embedding),
        tensor("decoder.embed_positions.weight", &[CONTEXT, WIDTH], positions),
        tensor("encoder.embed_positions.weight", &[ROWS, WIDTH], signs(ROWS * WIDTH, 0.1)),
        tensor("encoder.conv1.weight", &[WIDTH, BINS, 3], signs(WIDTH * BINS * 3, 0.05)),
        tensor("encoder.conv1.bias", &[WIDTH], vec![0.0; WIDTH]),
        tensor("encoder.conv2.weight", &[WIDTH, WIDTH, 3], signs(WIDTH * WIDTH * 3, 0.05)),
        tensor("encoder.conv2.bias", &[WIDTH], vec![0.0; WIDTH]),
    ];
    for side in ["encoder", "decoder"] {
        let mut norms = vec![format!("{side}.layer_norm")];
        let layer = format!("{side}.layers.0");
        norms.extend(["self_attn_layer_norm", "final_layer_norm"].map(|norm| format!("{layer}.{norm}")));
        let mut attentions = vec!["self_attn"];
        if side == "decoder" {
            norms.push(format!("{layer}.encoder_attn_layer_norm"));
            attentions.push("encoder_attn");
        }
        for norm in norms {
            tensors.push(tensor(&format!("{norm}.weight"), &[WIDTH], vec![1.0; WIDTH]));
            tensors.push(tensor(&format!("{norm}.bias"), &[WIDTH], vec![0.0; WIDTH]));
        }

        // The last layer of each part adds nothing in the decoder.
        let last = if side == "decoder" { 0.0 } else { 0.1 };
        let parts = attentions.iter().flat_map(|attention| {
            ["q_proj", "k_proj", "v_proj", "out_proj"].map(|part| format!("{attention}.{part}"))
        });
        for part in parts.chain(["fc1".to_owned(), "fc2".to_owned()]) {
            let is_last = part.ends_with("out_proj") || part == "fc2";
            let weight = signs(WIDTH * WIDTH, if is_last { last } else { 0.1 });
            tensors.push(tensor(&format!("{layer}.{part}.weight"), &[WIDTH, WIDTH], weight));
            if !part.ends_with("k_proj") {
                tensors.push(tensor(&format!("{layer}.{part}.bias"), &[WIDTH], vec![0.0; WIDTH]));
            }
        }
    }
    tensors
}

/// Returns the rows of two positions. After the first, the first letter is 1.5 times as likely as the other one. After the
/// second, beside the embedding of the letter before it, the other one is cancelled, so that the second letter is certain,
/// and the first one is as likely as the second.
fn choice([first, second, other]: [&[f32]; 3]) -> [Vec<f32>; 2] {
    let product = |a: &[f32], b: &[f32]| {
        // The norm before the head takes the mean away.
        let mean = a.iter().sum::<f32>() / WIDTH as f32;
        a.iter().zip(b).map(|(a, b)| (a - mean) * b).sum::<f32>()
    };
    let both = product(first, other);
    let weight = (product(other, other) - both + PREFERENCE) / (product(first, first) - both);
    let shared = product(first, second);
    let against = product(second, other) - both;
    let next = (product(first, first) - shared + against) / (product(second, second) - shared);
    let rows = |a: &[f32], x: f32, b: &[f32], y: f32| -> Vec<f32> {
        a.iter().zip(b).map(|(a, b)| a * x + b * y).collect()
    };
    [rows(first, weight * 100.0, other, 100.0), rows(second, next, other, -1.0)]
}

fn tensor(name: &str, shape: &[usize], values: Vec<f32>) -> HfTensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    HfTensor { name: format!("model.{name}"), dtype: "F32", shape: shape.to_vec(), bytes }
}

/// Returns a byte-level tokenizer without merges.
fn tokenizer() -> Value {
    let is_plain = |byte: &u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    let vocab: serde_json::Map<String, Value> = (0..256u32)
        .map(|byte| {
            let code = if is_plain(&byte) { Some(byte) } else { others.next() };
            let text = code.and_then(char::from_u32).map(String::from);
            (text.unwrap_or_default(), byte.into())
        })
        .collect();
    let added: Vec<Value> = CONTROL
        .iter()
        .zip(256..)
        .map(|(text, id)| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": false, "vocab": vocab, "merges": []},
    })
}
