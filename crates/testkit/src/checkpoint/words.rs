//! The tokenizers of the tiny models: byte-level BPE and WordPiece, each as `tokenizer.json` and as GGUF metadata.
//!
//! Both cover all texts of the tests: the BPE has every byte, the WordPiece every lower-case letter and digit.

use serde_json::{Value, json};

use super::gguf::Meta;

/// ChatML.
pub(super) const CHAT_TEMPLATE: &str = concat!(
    r"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' ",
    r"+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
);

/// Special tokens of the BPE, at the start of the vocabulary.
const LLAMA_SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Merges of the BPE by rank; `Ġ` is a space.
const MERGES: [&str; 41] = [
    "Ġ t", "h e", "i n", "a n", "o u", "r e", "o n", "e r", "Ġ a", "Ġt he", "Ġ s", "Ġ w", "n d", "i t",
    "e s", "o r", "e n", "Ġ c", "Ġ b", "Ġa nd", "i s", "in g", "Ġ f", "Ġ p", "a l", "e d", "Ġ m", "Ġ o",
    "a t", "Ġo f", "l l", "Ġ h", "Ġt o", "Ġ i", "Ġi n", "Ġi s", "a r", "i c", "Ġ d", "Ġc a", "Ġca t",
];

/// Special tokens of the WordPiece, at the start of the vocabulary.
const BERT_SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// Whole words of the WordPiece.
pub(super) const BERT_WORDS: [&str; 24] = [
    "the", "a", "of", "and", "to", "in", "is", "it", "that", "for", "on", "with", "as", "was", "at", "by",
    "cat", "dog", "house", "river", "runs", "sleeps", "what", "where",
];

/// Returns GPT-2's visible characters for bytes 0 to 255: printable bytes for themselves, the next character from
/// U+0100 on for the others.
fn byte_characters() -> impl Iterator<Item = char> {
    let prints = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut hidden = '\u{100}'..;
    (0..=u8::MAX).filter_map(move |byte| if prints(byte) { Some(char::from(byte)) } else { hidden.next() })
}

/// Returns the vocabulary of the BPE by id.
pub(super) fn llama_tokens() -> Vec<String> {
    let special = LLAMA_SPECIAL.into_iter().map(str::to_owned);
    let bytes = byte_characters().map(String::from);
    special.chain(bytes).chain(MERGES.map(|merge| merge.replace(' ', ""))).collect()
}

/// Returns the vocabulary of the WordPiece by id.
pub(super) fn bert_tokens() -> Vec<String> {
    let letters: Vec<String> = ('a'..='z').chain('0'..='9').map(String::from).collect();
    let inside = letters.iter().map(|letter| format!("##{letter}")).collect::<Vec<_>>();
    let points = ['.', ',', '!', '?', '\'', '-', ':'].map(String::from);
    // The word "a" is among the letters already.
    let words = BERT_WORDS.iter().filter(|word| word.len() > 1).map(|word| (*word).to_owned());
    let special = BERT_SPECIAL.into_iter().map(str::to_owned);
    special.chain(letters).chain(inside).chain(points).chain(words).collect()
}

pub(super) fn llama_meta() -> Vec<(&'static str, Meta)> {
    let tokens = llama_tokens();
    // 3 is a control token, 1 an ordinary one.
    let types = (0..tokens.len()).map(|id| if id < LLAMA_SPECIAL.len() { 3 } else { 1 }).collect();
    vec![
        ("tokenizer.ggml.model", Meta::Text("gpt2".into())),
        ("tokenizer.ggml.pre", Meta::Text("smollm".into())),
        ("tokenizer.ggml.tokens", Meta::Texts(tokens)),
        ("tokenizer.ggml.token_type", Meta::I32s(types)),
        ("tokenizer.ggml.merges", Meta::Texts(MERGES.map(str::to_owned).to_vec())),
        ("tokenizer.ggml.bos_token_id", Meta::U32(0)),
        ("tokenizer.ggml.eos_token_id", Meta::U32(2)),
        ("tokenizer.ggml.padding_token_id", Meta::U32(0)),
        ("tokenizer.ggml.add_bos_token", Meta::Bool(false)),
        ("tokenizer.chat_template", Meta::Text(CHAT_TEMPLATE.into())),
    ]
}

/// Returns the metadata of a GGUF file about a WordPiece vocabulary, whose tokens are spelt as in `tokenizer.json` and begin
/// with `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]`.
pub fn word_piece_meta(tokens: &[String]) -> Vec<(&'static str, Meta)> {
    // GGUF marks the pieces at the start of a word, `tokenizer.json` the others.
    let spelt = |token: &String| match token.strip_prefix("##") {
        Some(inside) => inside.to_owned(),
        None if BERT_SPECIAL.contains(&token.as_str()) => token.clone(),
        None => format!("▁{token}"),
    };
    let tokens: Vec<String> = tokens.iter().map(spelt).collect();
    let types = (0..tokens.len()).map(|id| if id < BERT_SPECIAL.len() { 3 } else { 1 }).collect();
    vec![
        ("tokenizer.ggml.model", Meta::Text("bert".into())),
        ("tokenizer.ggml.tokens", Meta::Texts(tokens)),
        ("tokenizer.ggml.token_type", Meta::I32s(types)),
        ("tokenizer.ggml.token_type_count", Meta::U32(2)),
        ("tokenizer.ggml.padding_token_id", Meta::U32(0)),
        ("tokenizer.ggml.unknown_token_id", Meta::U32(1)),
        ("tokenizer.ggml.cls_token_id", Meta::U32(2)),
        ("tokenizer.ggml.seperator_token_id", Meta::U32(3)),
        ("tokenizer.ggml.mask_token_id", Meta::U32(4)),
    ]
}

fn vocabulary(tokens: &[String]) -> Value {
    tokens
        .iter()
        .enumerate()
        .map(|(id, token)| (token.clone(), Value::from(id)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn added(special: &[&str]) -> Value {
    let token = |(id, content): (usize, &&str)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        })
    };
    special.iter().enumerate().map(token).collect()
}

pub(super) fn llama_tokenizer() -> Value {
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added(&LLAMA_SPECIAL),
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level],
        },
        "post_processor": null, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary(&llama_tokens()), "merges": MERGES.as_slice(),
        },
    })
}

pub(super) fn bert_tokenizer() -> Value {
    let special = |text: &str, side: u8| json!({"SpecialToken": {"id": text, "type_id": side}});
    let text = |id: &str, side: u8| json!({"Sequence": {"id": id, "type_id": side}});
    let single = vec![special("[CLS]", 0), text("A", 0), special("[SEP]", 0)];
    let pair = [single.clone(), vec![text("B", 1), special("[SEP]", 1)]].concat();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added(&BERT_SPECIAL),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary(&bert_tokens()),
        },
    })
}

pub(super) fn bert_tokenizer_config() -> Value {
    json!({
        "do_lower_case": true, "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
        "mask_token": "[MASK]", "tokenizer_class": "BertTokenizer", "model_max_length": super::BERT_POSITIONS,
    })
}
