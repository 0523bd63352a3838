//! JSON schemas, Lark grammars and regular expressions: they are compiled, and an answer that follows them is
//! generated. Another validator checks the answers of schemas of numbers.
//!
//! An input that begins with `{` is a schema, an input that begins with `/` is a regular expression, and any other
//! input is a Lark grammar.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use narthex_testkit::checkpoint::tiny_tokenizer_json;
use narthex_text::{
    grammar::{Grammar, GrammarCompiler},
    tokenizer::Tokenizer,
};

/// Maximum number of tokens in an answer.
const TOKENS: usize = 48;

/// Token that ends an answer.
const END: u32 = 2;

/// The tokenizer of the tiny Llama.
static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_json(&tiny_tokenizer_json()).expect("a byte-level tokenizer"));

static COMPILER: LazyLock<GrammarCompiler> =
    LazyLock::new(|| GrammarCompiler::new(&TOKENIZER, &[END]).expect("a compiler"));

fn grammar(data: &[u8]) -> Option<Grammar> {
    let text = std::str::from_utf8(data).ok()?;
    match text.strip_prefix('/') {
        Some(expression) => Some(Grammar::Regex(expression.to_owned())),
        None if text.starts_with('{') => serde_json::from_str(text).ok().map(Grammar::JsonSchema),
        None => Some(Grammar::Lark(text.to_owned())),
    }
}

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let Some(grammar) = grammar(data) else { return };
    let _ = grammar.pattern();
    let Ok(mut matcher) = COMPILER.compile(&grammar) else { return };
    let mut forced = Vec::new();
    let mut text = Vec::new();
    for step in 0..TOKENS {
        matcher.prepare();
        if matcher.failure().is_some() {
            break;
        }
        let allowed = matcher.allowed();
        let ids = || (0..allowed.len() * 32).filter(|id| allowed[id / 32] >> (id % 32) & 1 == 1);
        if let Grammar::JsonSchema(schema) = &grammar
            && (matcher.is_complete() || ids().any(|id| id == END as usize))
        {
            narthex_fuzz::numbers::check(schema, &text);
        }
        if matcher.is_complete() {
            break;
        }
        let count = ids().count();
        let Some(token) = ids().nth(step * 7 % count.max(1)) else { break };
        if token != END as usize {
            text.extend(TOKENIZER.token_bytes(token as u32));
        }
        matcher.accept(token as u32);
        forced.clear();
        matcher.forced(&mut forced);
    }
});
