//! Memory of grammars: a counting allocator sees that hostile ones at once stay small.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use narthex_testkit::allocator::CountingAllocator;
use narthex_text::{
    grammar::{Grammar, GrammarCompiler},
    tokenizer::{GgufVocab, Tokenizer},
};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Maximum number of bytes of eight grammars at once.
const MAX: usize = 100 << 20;

/// Returns a tokenizer of letters and repetitions of them.
fn tokenizer() -> Tokenizer {
    let repeated = ('a'..='z').flat_map(|letter| (1..=16).map(move |count| letter.to_string().repeat(count)));
    let others = ["<|end|>", "\"", "Ġ", "{", "}", "[", "]"].map(str::to_owned);
    let tokens: Vec<String> = others.into_iter().chain(repeated).collect();
    let types = (0..tokens.len()).map(|id| if id == 0 { 3 } else { 1 }).collect();
    let (model, pre) = ("gpt2".to_owned(), Some("smollm".to_owned()));
    let vocab = GgufVocab { model, pre, types: Some(types), tokens, ..GgufVocab::default() };
    Tokenizer::from_gguf(&vocab).unwrap()
}

/// The only test of this program: tests at once would count each other's memory.
#[test]
fn eight_hostile_grammars_take_little_memory() {
    let compiler = GrammarCompiler::new(&tokenizer(), &[0]).unwrap();
    for pattern in ["(a{1000}){1000}", "((a|b){1000}){1000}", r"(\w{1000}){1000}", "(.*a.{20}){9}"] {
        let schema = json!({"type": "string", "pattern": format!("^{pattern}$")});
        let lark = format!("start: A{{1000}}\nA: /{pattern}/");
        for grammar in [Grammar::Regex(pattern.to_owned()), Grammar::JsonSchema(schema), Grammar::Lark(lark)]
        {
            let before = ALLOCATOR.reset_peak();
            let mut matchers: Vec<_> = (0..8).filter_map(|_| compiler.compile(&grammar).ok()).collect();
            for matcher in &mut matchers {
                let mut forced = Vec::new();
                for step in 0..60 {
                    if matcher.failure().is_some() {
                        break;
                    }
                    let allowed = matcher.allowed();
                    let is_allowed = |token: &u32| allowed[*token as usize / 32] >> (token % 32) & 1 == 1;
                    let tokens: Vec<u32> = (1..allowed.len() as u32 * 32).filter(is_allowed).collect();
                    let Some(&token) = tokens.get(step * 7 % tokens.len().max(1)) else { break };
                    matcher.accept(token);
                    forced.clear();
                    matcher.forced(&mut forced);
                    matcher.prepare();
                }
            }
            let peak = ALLOCATOR.peak().saturating_sub(before);
            assert!(peak < MAX, "{grammar:?}: {peak} bytes");
        }
    }
}
