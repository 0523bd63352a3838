//! Random answers under schemas of numbers, dates and references, checked by another validator: each answer ends and is
//! valid, or its schema was refused.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_engine::sample::SplitMix64;
use narthex_text::{
    grammar::{Grammar, GrammarCompiler, GrammarMatcher, json_rule},
    tokenizer::{GgufVocab, Tokenizer},
};
use serde_json::{Value, json};

/// Number of answers under a schema.
const ANSWERS: usize = 30;

/// Number of answers under each of many schemas.
const FEW_ANSWERS: usize = 3;

/// Maximum number of tokens of an answer.
const MAX_TOKENS: usize = 400;

/// Token that ends an answer.
const END: u32 = 0;

/// Returns a tokenizer of printable characters and some longer tokens.
fn tokenizer() -> Tokenizer {
    let single = ('!'..='~').chain(['Ġ', 'Ċ']).map(String::from);
    let longer = ["10", "000", "12345", ".5", "e9", "e+123", "1234567890123456789012345", ": Ġ1", "00.00"];
    let tokens: Vec<String> =
        ["<|end|>".to_owned()].into_iter().chain(single).chain(longer.map(str::to_owned)).collect();
    let types = (0..tokens.len()).map(|id| if id == END as usize { 3 } else { 1 }).collect();
    let (model, pre) = ("gpt2".to_owned(), Some("smollm".to_owned()));
    let vocab = GgufVocab { model, pre, types: Some(types), tokens, ..GgufVocab::default() };
    Tokenizer::from_gguf(&vocab).unwrap()
}

struct Walk {
    tokenizer: Tokenizer,
    compiler: GrammarCompiler,
    rng: SplitMix64,
    answers: usize,
}

impl Walk {
    fn new() -> Self {
        let tokenizer = tokenizer();
        let compiler = GrammarCompiler::new(&tokenizer, &[END]).unwrap();
        Self { tokenizer, compiler, rng: SplitMix64::new(7), answers: ANSWERS }
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.rng.next_u64() % bound as u64) as usize
    }

    /// Returns a random answer, or what there is of one that does not end.
    fn answer(&mut self, mut matcher: GrammarMatcher) -> Result<String, String> {
        let mut text = Vec::new();
        // Some answers stay on one token as long as they can, as models that repeat themselves.
        let repeats = self.below(2) == 0;
        let mut last = None;
        for _ in 0..MAX_TOKENS {
            if matcher.is_complete() {
                return Ok(String::from_utf8(text).unwrap());
            }
            matcher.prepare();
            assert_eq!(matcher.failure(), None, "after {:?}", String::from_utf8_lossy(&text));
            let allowed = matcher.allowed();
            let is_allowed = |token: &u32| allowed[*token as usize / 32] >> (token % 32) & 1 == 1;
            let tokens: Vec<u32> = (0..allowed.len() as u32 * 32).filter(is_allowed).collect();
            let repeated = last.filter(|token| repeats && is_allowed(token));
            let token = repeated.unwrap_or_else(|| tokens[self.below(tokens.len())]);
            if token == END {
                return Ok(String::from_utf8(text).unwrap());
            }
            text.extend(self.tokenizer.token_bytes(token));
            matcher.accept(token);
            last = Some(token);
        }
        Err(String::from_utf8_lossy(&text).into_owned())
    }

    /// Checks random answers, and returns whether the schema was accepted. `expect` checks a valid value further.
    fn check(&mut self, schema: &Value, expect: &dyn Fn(&str) -> bool) -> bool {
        let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
        let matcher = match self.compiler.compile(&Grammar::JsonSchema(schema.clone())) {
            Ok(matcher) => matcher,
            Err(error) => {
                let error = error.to_string();
                let has_library_words = ["f64", "fuel", "Failed to", "regex for", "i64", "panick"];
                assert!(!has_library_words.iter().any(|word| error.contains(word)), "{schema}: {error}");
                return false;
            }
        };
        for _ in 0..self.answers {
            let text =
                self.answer(matcher.clone()).unwrap_or_else(|text| panic!("no end of {text} under {schema}"));
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(validator.is_valid(&value) && expect(&text), "{text} under {schema}");
        }
        true
    }
}

const LOWEST: i64 = i64::MIN;
const HIGHEST: i64 = i64::MAX;

#[test]
fn schemas_of_numbers_are_enforced() {
    let mut walk = Walk::new();
    for schema in [
        json!({"type": "integer"}),
        json!({"type": "number"}),
        json!({"type": ["null", "number"]}),
        json!({"type": "integer", "minimum": LOWEST, "maximum": HIGHEST}),
        json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}),
        json!({"type": "integer", "minimum": -1e300, "maximum": 1e300}),
        json!({"type": "number", "minimum": -1e300, "maximum": 1e300}),
        json!({"type": ["integer", "number"], "minimum": LOWEST, "maximum": HIGHEST}),
        json!({"type": ["number", "string"], "minimum": LOWEST, "maxLength": 2}),
        json!({"allOf": [{"type": "integer", "minimum": LOWEST}, {"maximum": HIGHEST}]}),
        json!({"type": "integer", "exclusiveMinimum": 9_007_199_254_740_992_i64, "maximum": 9_007_199_254_740_999_i64}),
        json!({"allOf": [{"type": "integer"}, {"exclusiveMinimum": 9_007_199_254_740_992_i64}]}),
        json!({"type": "integer", "exclusiveMaximum": 0, "minimum": -3.5}),
        json!({"type": "number", "exclusiveMinimum": 1}),
        json!({"type": "number", "exclusiveMinimum": 1, "maximum": 1.5}),
        json!({"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 1}),
        json!({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}),
        json!({"type": "number", "exclusiveMinimum": 0}),
        json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-3}),
        json!({"type": "number", "exclusiveMinimum": 999.5, "exclusiveMaximum": 1000}),
        json!({"type": "number", "minimum": 0.1, "maximum": 0.3}),
        json!({"type": "number", "minimum": 1e-300}),
        json!({"type": "number", "maximum": -1e18}),
        json!({"type": "number", "multipleOf": 0.25, "minimum": 1, "maximum": 9}),
        json!({"type": "number", "multipleOf": 0.01}),
        json!({"type": "integer", "multipleOf": 7, "exclusiveMinimum": 0}),
        json!({"const": 9_007_199_254_740_992_i64}),
        json!({"const": -0.5}),
        json!({"const": 1e-300}),
        json!({"enum": [1, 2.5, -3, 1_000_000_000_000_000_000_i64]}),
        json!({"type": "array", "items": {"type": "number"}, "maxItems": 2}),
    ] {
        assert!(walk.check(&schema, &|_| true), "{schema}");
    }
}

#[test]
fn schemas_of_numbers_end_in_an_error_at_worst() {
    let mut walk = Walk::new();
    walk.answers = FEW_ANSWERS;
    let edges = [
        json!(0),
        json!(-1),
        json!(LOWEST),
        json!(HIGHEST),
        json!(u64::MAX),
        json!(9_007_199_254_740_993_i64),
        json!(-9_007_199_254_740_993_i64),
        json!(1e308),
        json!(-1e308),
        json!(5e-324),
        json!(9.3e18),
        json!(0.5),
    ];
    for kind in ["integer", "number"] {
        for low in &edges {
            let divisor = low.as_f64().unwrap().abs() + f64::MIN_POSITIVE;
            walk.check(&json!({"type": kind, "multipleOf": divisor}), &|_| true);
            walk.check(&json!({"type": kind, "exclusiveMinimum": low}), &|_| true);
            walk.check(&json!({"type": kind, "maximum": low}), &|_| true);
            for high in &edges {
                for schema in [
                    json!({"type": kind, "minimum": low, "maximum": high}),
                    json!({"type": kind, "exclusiveMinimum": low, "exclusiveMaximum": high}),
                    json!({"type": kind, "allOf": [{"minimum": low}, {"exclusiveMaximum": high}]}),
                    json!({"allOf": [{"type": kind}, {"enum": [low, high]}]}),
                ] {
                    walk.check(&schema, &|_| true);
                }
            }
        }
    }
}

#[test]
fn digits_of_large_integers_are_exact_or_refused() {
    let mut walk = Walk::new();
    for value in [1_234_567_890_123_456_789_i64, HIGHEST, LOWEST, 9_007_199_254_740_993, 1 << 60] {
        for schema in [
            json!({"const": value}),
            json!({"enum": [value]}),
            json!({"type": "integer", "minimum": value, "maximum": value}),
            json!({"items": {"const": value}, "type": "array", "minItems": 1, "maxItems": 1}),
        ] {
            let digits = value.to_string();
            let accepted = walk.check(&schema, &|text| text.trim_matches(['[', ']']) == digits);
            assert!(accepted || value != 1 << 60, "{schema}");
        }
    }
    // Beyond 64 bits, JSON is read as f64, which would change the digits.
    for digits in ["18446744073709551616", "100000000000000000001", "-9223372036854775809"] {
        for schema in [format!(r#"{{"const": {digits}}}"#), format!(r#"{{"enum": ["a", {digits}]}}"#)] {
            assert!(!walk.check(&serde_json::from_str(&schema).unwrap(), &|_| true), "{schema}");
        }
    }
}

#[test]
fn dates_exist_and_references_are_followed() {
    let mut walk = Walk::new();
    for format in ["date", "time", "date-time", "duration"] {
        assert!(walk.check(&json!({"type": "string", "format": format}), &|_| true), "{format}");
        let range = json!({"type": "string", "format": format, "pattern": "[0-4]", "maxLength": 24});
        assert!(walk.check(&range, &|_| true), "{format}");
    }
    let definitions =
        json!({"Box<string>": {"enum": ["k"]}, "x/y": {"type": "integer", "minimum": 4, "maximum": 4}});
    let schema = json!({
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/Box%3Cstring%3E"}, "b": {"$ref": "#/definitions/x~1y"}},
        "required": ["a", "b"],
        "definitions": definitions,
    });
    assert!(walk.check(&schema, &|text| text == r#"{"a": "k", "b": 4}"#));
    // Numbers behind a reference to any part of a schema are enforced, too.
    let hidden = json!({"$ref": "#/x-hidden/q", "x-hidden": {"q": {"type": "integer", "minimum": LOWEST, "maximum": LOWEST}}});
    assert!(!walk.check(&hidden, &|_| true));
}

#[test]
fn schemas_in_grammars_have_the_same_limits() {
    let mut walk = Walk::new();
    let integer = json_rule(&json!({"type": "integer"})).unwrap();
    let open = [
        format!("start: \"f(a=\" {integer} \")\""),
        format!("start: \"<a>\\n\" {integer} \"\\n</a>\""),
        "start: \"{\" %json {\"type\": \"number\"} \"}\"".to_owned(),
        r#"start: "[" %json {"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807} "]""#
            .to_owned(),
        format!("start: \"n\" %lark {{\nstart: \"[\" {integer} \"]\"\n}}"),
    ];
    for source in open {
        let matcher = walk.compiler.compile(&Grammar::Lark(source.clone())).unwrap();
        for _ in 0..ANSWERS {
            let text =
                walk.answer(matcher.clone()).unwrap_or_else(|text| panic!("no end of {text} under {source}"));
            let digits = text.bytes().filter(u8::is_ascii_digit).count();
            assert!(digits <= 41, "{text}");
        }
    }
    for schema in [
        json!({"type": "integer", "minimum": LOWEST, "maximum": LOWEST}),
        json!({"const": 1_234_567_890_123_456_789_i64}),
        json!({"$ref": "#/$defs/q", "$defs": {"q": {"type": "number", "multipleOf": 2_147_483_648_u32}}}),
    ] {
        let grammar = Grammar::Lark(format!("start: \"a\" %json {schema}"));
        assert!(walk.compiler.compile(&grammar).is_err(), "{schema}");
    }
}
