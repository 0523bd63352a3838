//! Memory of a tokenizer: a counting allocator sees that texts leave nothing behind.

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]
#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use narthex_text::tokenizer::{Specials, Tokenizer};
use serde_json::{Map, Value, json};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
        let before = HELD.load(Ordering::Relaxed);
        assert!(first.encode(&text, Specials::AsText).unwrap().len() > WORDS);
        let grown = HELD.load(Ordering::Relaxed).saturating_sub(before);
        assert!(grown < 32 << 10, "{kind}: {grown} bytes stay after a text of {} bytes", text.len());

        drop(first);
        let before = HELD.load(Ordering::Relaxed);
        for _ in 0..50 {
            tokenizer(kind).encode(&text[..1000], Specials::AsText).unwrap();
        }
        let grown = HELD.load(Ordering::Relaxed).saturating_sub(before);
        assert!(grown < 32 << 10, "{kind}: {grown} bytes stay after 50 tokenizers");
    }
}
