//! Memory of a tokenizer: a counting allocator sees that texts leave nothing behind.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use narthex_testkit::allocator::CountingAllocator;
use narthex_text::tokenizer::{Specials, Tokenizer};
use serde_json::{Map, Value, json};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Returns a tokenizer whose words are letters, of this type of model.
fn tokenizer(kind: &str) -> Tokenizer {
    let letters = ('a'..='z').map(String::from);
    let model = if kind == "Unigram" {
        let vocab: Vec<Value> = letters.map(|letter| json!([letter, -1.0])).collect();
        json!({"type": kind, "unk_id": 0, "vocab": vocab})
    } else {
        let vocab: Map<String, Value> = letters.enumerate().map(|(id, letter)| (letter, id.into())).collect();
        json!({"type": kind, "vocab": vocab, "merges": []})
    };
    let json = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null, "decoder": null, "model": model,
    });
    Tokenizer::from_json(&serde_json::to_vec(&json).unwrap()).unwrap()
}

/// Returns a text of different words.
fn text(words: usize) -> String {
    let letter = |at: usize| char::from(b'a' + (at % 26) as u8);
    let word = |at: usize| [at, at / 26, at / 676].map(letter).into_iter().collect::<String>().repeat(20);
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}

/// The only test of this program: tests at once would count each other's memory.
#[test]
fn texts_and_dropped_tokenizers_leave_nothing_in_memory() {
    const WORDS: usize = 2000;
    let text = text(WORDS);
    for kind in ["BPE", "Unigram"] {
        let first = tokenizer(kind);
        assert_eq!(first.encode("abc", Specials::AsText).unwrap().len(), 3);
        let before = ALLOCATOR.held();
        assert!(first.encode(&text, Specials::AsText).unwrap().len() > WORDS);
        let grown = ALLOCATOR.held().saturating_sub(before);
        assert!(grown < 32 << 10, "{kind}: {grown} bytes stay after a text of {} bytes", text.len());

        drop(first);
        let before = ALLOCATOR.held();
        for _ in 0..50 {
            tokenizer(kind).encode(&text[..1000], Specials::AsText).unwrap();
        }
        let grown = ALLOCATOR.held().saturating_sub(before);
        assert!(grown < 32 << 10, "{kind}: {grown} bytes stay after 50 tokenizers");
    }
}
