//! Tests of the grammars of calls, in every format: a text that follows the grammar and that the parser reads as a call
//! is a valid call.

use narthex_spec::ToolFormat;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    CallLimit, CallReading, Callable, ContentRule, TextEnd, ToolEvent, ToolParser, call_grammar,
    examples::Examples,
    formats::{self, definition},
    markers,
};
use crate::{
    exact_json::ExactJson,
    grammar::{Grammar, GrammarCompiler, GrammarError, GrammarMatcher},
    template::{FunctionCall, Message, Role},
    tokenizer::{GgufVocab, Specials, Tokenizer},
};

/// Returns a tokenizer of single bytes and of these special tokens, the first of which ends an answer.
pub(super) fn tokenizer(special: &[&str]) -> Tokenizer {
    let mut shifted = 256;
    let byte = |byte: u8| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => {
            shifted += 1;
            char::from_u32(shifted - 1).unwrap()
        }
    };
    let mut tokens: Vec<String> = (0..=255).map(byte).map(String::from).collect();
    tokens.extend(special.iter().map(|token| (*token).to_owned()));
    let types = (0..tokens.len()).map(|id| if id > 255 { 3 } else { 1 }).collect();
    let (model, pre) = ("gpt2".to_owned(), Some("smollm".to_owned()));
    let vocab = GgufVocab { model, pre, types: Some(types), tokens, ..GgufVocab::default() };
    Tokenizer::from_gguf(&vocab).unwrap()
}

const END: u32 = 256;

struct Tools {
    weather: Value,
    stop: Value,
}

impl Tools {
    fn new() -> Self {
        let weather = json!({
            "type": "object",
            "properties": {
                "city": {"$ref": "#/$defs/city"},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "parts": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
            },
            "required": ["city"],
            "additionalProperties": false,
            "$defs": {"city": {"type": "string", "enum": ["Rome", "Oslo's \"old\" town"]}},
        });
        let stop = json!({"type": "object", "properties": {}, "additionalProperties": false});
        Self { weather, stop }
    }

    fn grammar(
        &self,
        tokenizer: &Tokenizer,
        format: ToolFormat,
        beside: ContentRule<'_>,
    ) -> Result<Grammar, GrammarError> {
        let functions = [
            Callable { name: "get-weather", parameters: &self.weather },
            Callable { name: "stop", parameters: &self.stop },
        ];
        call_grammar(tokenizer, format, &functions, CallLimit::Any, beside)
    }
}

fn matcher(tokenizer: &Tokenizer, grammar: &Grammar) -> GrammarMatcher {
    let compiler = GrammarCompiler::new(tokenizer, &[END]).unwrap();
    compiler.compile(grammar).unwrap_or_else(|error| panic!("{error}: {grammar:?}"))
}

fn is_allowed(matcher: &mut GrammarMatcher, token: u32) -> bool {
    matcher.prepare();
    matcher.allowed()[token as usize / 32] >> (token % 32) & 1 == 1
}

/// Returns true if a text as a whole follows a grammar.
fn follows(tokenizer: &Tokenizer, grammar: &GrammarMatcher, text: &str) -> bool {
    let mut matcher = grammar.clone();
    let tokens = tokenizer.encode(text, Specials::Parse).unwrap();
    let all = tokens.into_iter().all(|token| {
        let allowed = !matcher.is_complete() && is_allowed(&mut matcher, token);
        matcher.accept(token);
        allowed
    });
    all && (matcher.is_complete() || is_allowed(&mut matcher, END))
}

/// Returns the test data of a format.
fn examples(format: ToolFormat) -> Examples {
    (definition(format).examples)()
}

/// Returns the markers that a vocabulary has as tokens whose models write calls as the format does.
fn tokens(format: ToolFormat) -> &'static [&'static str] {
    examples(format).tokens.unwrap_or(markers(format))
}

fn call(name: &str, arguments: Value) -> FunctionCall {
    FunctionCall { name: name.to_owned(), arguments: arguments.into() }
}

/// Returns calls in a format.
pub(super) fn write_calls(format: ToolFormat, calls: &[FunctionCall]) -> String {
    let mut message = Message::new(Role::Assistant, String::new());
    formats::write_calls(format, calls, &mut message);
    message.content.text().into_owned()
}

/// Returns the calls that the parser finds, and true if it finds anything else.
fn parsed(format: ToolFormat, schema: &Value, text: &str) -> (Vec<FunctionCall>, bool) {
    let tool = |name: &str, parameters: &Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let tools = [tool("get-weather", schema), tool("stop", &Value::Null)];
    let mut parser = ToolParser::new(format, &tools, CallReading::Exact, &[]);
    let (mut calls, mut arguments, mut has_more) = (Vec::new(), String::new(), false);
    for event in [parser.push(text), parser.finish(TextEnd::Complete)].concat() {
        match event {
            ToolEvent::Begin { name, .. } => calls.push(call(&name, Value::Null)),
            ToolEvent::Arguments(part) => arguments.push_str(&part),
            ToolEvent::End => {
                let read = serde_json::from_str(&std::mem::take(&mut arguments)).unwrap();
                calls.last_mut().unwrap().arguments = read;
            }
            ToolEvent::Text(_) | ToolEvent::Malformed(_) => has_more = true,
        }
    }
    (calls, has_more)
}

#[test]
fn every_format_allows_valid_calls_alone() {
    let tools = Tools::new();
    let valid = [
        json!({"city": "Rome"}),
        json!({"city": "Oslo's \"old\" town", "days": 2}),
        json!({"city": "Rome", "days": 9, "parts": []}),
    ];
    let wrong = [json!({"city": "Bonn"}), json!({"days": 2}), json!({"city": "Rome", "days": 12})];
    for &format in ToolFormat::ALL {
        for special in [&[][..], tokens(format)] {
            let tokenizer = tokenizer(&[&["<|end|>"], special].concat());
            let grammar = tools.grammar(&tokenizer, format, ContentRule::Nothing).unwrap();
            let matcher = matcher(&tokenizer, &grammar);
            let check = |calls: &[FunctionCall], expect: bool| {
                let text = write_calls(format, calls);
                assert_eq!(follows(&tokenizer, &matcher, &text), expect, "{format:?}: {text} {grammar:?}");
            };
            valid.iter().for_each(|arguments| check(&[call("get-weather", arguments.clone())], true));
            wrong.iter().for_each(|arguments| check(&[call("get-weather", arguments.clone())], false));
            check(&[call("stop", json!({}))], true);
            check(&[call("other", json!({}))], false);
            if examples(format).max_calls > 1 {
                check(&[call("stop", json!({})), call("get-weather", valid[0].clone())], true);
            }
            assert!(!follows(&tokenizer, &matcher, "Hello"), "{format:?}");
        }
    }
}

#[test]
fn names_stand_before_arguments_where_the_vocabulary_divides_them() {
    let format = ToolFormat::Mistral;
    let tokenizer = tokenizer(&[&["<|end|>"], markers(format)].concat());
    let grammar = Tools::new().grammar(&tokenizer, format, ContentRule::Nothing).unwrap();
    let matcher = matcher(&tokenizer, &grammar);
    let text = "[TOOL_CALLS]get-weather[ARGS]{\"city\": \"Rome\"}[TOOL_CALLS]stop[ARGS]{}";
    assert!(follows(&tokenizer, &matcher, text));
    assert!(!follows(&tokenizer, &matcher, &text.replace("Rome", "Bonn")));
    assert_eq!(parsed(format, &Value::Null, text).0.len(), 2);
}

#[test]
fn free_text_has_valid_calls_alone() {
    let tools = Tools::new();
    for &format in ToolFormat::ALL {
        for special in [&[][..], tokens(format)] {
            let tokenizer = tokenizer(&[&["<|end|>"], special].concat());
            let grammar = tools.grammar(&tokenizer, format, ContentRule::Text).unwrap();
            let matcher = matcher(&tokenizer, &grammar);
            let check = |text: &str, expect: bool| {
                assert_eq!(follows(&tokenizer, &matcher, text), expect, "{format:?}: {text} {grammar:?}");
            };
            let right = write_calls(format, &[call("get-weather", json!({"city": "Rome"}))]);
            check("Hello <b>, 1 < 2, f(x) = [1, 2] {}", true);
            check("", true);
            check(&right, true);
            check(&right.replace("Rome", "Bonn"), false);
            if examples(format).has_text {
                check(&format!("Wait. {right} {right} done"), true);
                check(&format!("Wait. {}", right.replace("Rome", "Bonn")), false);
            }
        }
    }
}

#[test]
fn answers_are_calls_or_the_content_of_a_schema() {
    let tokenizer = tokenizer(&["<|end|>"]);
    let schema = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false});
    let schema = Grammar::JsonSchema(schema);
    for &format in ToolFormat::ALL {
        let grammar = Tools::new().grammar(&tokenizer, format, ContentRule::Content(&schema)).unwrap();
        let matcher = matcher(&tokenizer, &grammar);
        let head = examples(format).content_head;
        let stop = write_calls(format, &[call("stop", json!({}))]);
        let texts = ["{\"a\": 1}", &format!("{head}{stop}"), "Hello"];
        let found = texts.map(|text| follows(&tokenizer, &matcher, text));
        assert_eq!(found, [true, true, false], "{format:?}: {grammar:?}");
    }
}

#[test]
fn answers_are_calls_or_the_content_of_a_grammar() {
    let tokenizer = tokenizer(&["<|end|>"]);
    let contents = [
        Grammar::Regex("(yes|no)/[0-9]".to_owned()),
        // The rules have names of the calls' rules, and the last line is a comment.
        Grammar::Lark("start: calls \"/\" TEXT\ncalls: \"yes\" | \"no\"\nTEXT: /[0-9]/\n// }".to_owned()),
    ];
    for content in &contents {
        for &format in ToolFormat::ALL {
            let grammar = Tools::new().grammar(&tokenizer, format, ContentRule::Content(content)).unwrap();
            let matcher = matcher(&tokenizer, &grammar);
            let head = examples(format).content_head;
            let good = write_calls(format, &[call("get-weather", json!({"city": "Rome"}))]);
            let bad = good.replace("Rome", "Bonn");
            let texts =
                ["yes/7", "no/0", &format!("{head}{good}"), &format!("{head}{bad}"), "yes", "yes/77", ""];
            let found = texts.map(|text| follows(&tokenizer, &matcher, text));
            assert_eq!(found, [true, true, true, false, false, false, false], "{format:?}: {grammar:?}");
        }
    }
}

#[test]
fn a_text_inside_of_a_call_follows_its_grammar() {
    let source = "start: \"*** \" NAME LF (\"+\" /(.*)/ LF)+ \"*** End\"\nNAME: /.+/\n%import common.LF";
    let pattern = Grammar::Lark(source.to_owned()).pattern().unwrap();
    let schema = json!({
        "type": "object",
        "properties": {"input": {"type": "string", "pattern": pattern}},
        "required": ["input"],
        "additionalProperties": false,
    });
    let functions = [Callable { name: "get-weather", parameters: &schema }];
    for &format in ToolFormat::ALL {
        let tokenizer = tokenizer(&[&["<|end|>"], tokens(format)].concat());
        let grammar =
            call_grammar(&tokenizer, format, &functions, CallLimit::Any, ContentRule::Nothing).unwrap();
        let matcher = matcher(&tokenizer, &grammar);
        let check = |input: &str, expect: bool| {
            let one = call("get-weather", json!({"input": input}));
            let text = write_calls(format, std::slice::from_ref(&one));
            assert_eq!(follows(&tokenizer, &matcher, &text), expect, "{format:?}: {text} {grammar:?}");
            if expect {
                assert_eq!(parsed(format, &schema, &text), (vec![one], false));
            }
        };
        check("*** a \"b\" \\ é\n+x\ty = '1'\n+\n*** End", true);
        check("*** a\n+x\n", false);
        check("*** a\nx\n*** End", false);
    }
}

#[test]
fn arguments_that_cannot_be_named_are_a_dictionary() {
    let tokenizer = tokenizer(&["<|end|>"]);
    let schema = json!({
        "type": "object",
        "properties": {"a-b": {"type": "integer"}},
        "required": ["a-b"],
        "additionalProperties": false,
    });
    let functions = [Callable { name: "get-weather", parameters: &schema }];
    for &format in ToolFormat::ALL.iter().filter(|format| examples(**format).has_keywords) {
        let grammar =
            call_grammar(&tokenizer, format, &functions, CallLimit::Any, ContentRule::Nothing).unwrap();
        let one = call("get-weather", json!({"a-b": 5}));
        let text = write_calls(format, std::slice::from_ref(&one));
        let matcher = matcher(&tokenizer, &grammar);
        assert!(text.contains("(**{") && follows(&tokenizer, &matcher, &text), "{text}");
        assert_eq!(parsed(format, &schema, &text), (vec![one], false));
    }
}

#[test]
fn separate_arguments_follow_every_part_of_their_schema() {
    let tokenizer = tokenizer(&["<|end|>"]);
    let schema = json!({
        "$ref": "#/$defs/all",
        "$defs": {
            "all": {"allOf": [{"$ref": "#/$defs/some"}, {"properties": {"code": {"maxLength": 4}}}]},
            "some": {
                "type": "object",
                "properties": {
                    "code": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2},
                    "unit": {"enum": ["C", null]},
                    "rate": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]},
                    "name": {"$ref": "#/$defs/na~1me"},
                },
                "required": ["code"],
                "additionalProperties": false,
            },
            "na/me": {"type": ["string", "null"], "pattern": "x"},
        },
    });
    let functions = [Callable { name: "get-weather", parameters: &schema }];
    let is_own = |format: ToolFormat| format == ToolFormat::Gemma4 || examples(format).needs_types;
    let has_separate = |format: &&ToolFormat| examples(**format).has_keywords || is_own(**format);
    for &format in ToolFormat::ALL.iter().filter(has_separate) {
        let grammar =
            call_grammar(&tokenizer, format, &functions, CallLimit::Any, ContentRule::Nothing).unwrap();
        let matcher = matcher(&tokenizer, &grammar);
        let check = |arguments: Value, expect: bool| {
            let one = call("get-weather", arguments);
            let text = write_calls(format, std::slice::from_ref(&one));
            assert_eq!(follows(&tokenizer, &matcher, &text), expect, "{format:?}: {text} {grammar:?}");
            if expect {
                assert_eq!(parsed(format, &schema, &text), (vec![one], false));
            }
        };
        check(json!({"code": "ab"}), true);
        check(json!({"code": "abcd", "unit": "C", "rate": "ab", "name": "axb"}), true);
        if is_own(format) {
            check(json!({"code": "abcd", "unit": null, "rate": 12345, "name": null}), true);
        }
        for wrong in [
            json!({"code": "a"}),
            json!({"code": "abcde"}),
            json!({"code": "AB"}),
            json!({"code": "ab", "unit": "F"}),
            json!({"code": "ab", "rate": "abcd"}),
            json!({"code": "ab", "name": "a"}),
            json!({}),
        ] {
            check(wrong, false);
        }
    }
    let refused = |schema: Value| {
        let functions = [Callable { name: "f", parameters: &schema }];
        call_grammar(&tokenizer, ToolFormat::QwenCoder, &functions, CallLimit::Any, ContentRule::Nothing)
            .unwrap_err()
    };
    let keywords = "properties.a.pattern".to_owned();
    let error = refused(json!({"properties": {"a": {"type": "string", "pattern": "(?=b)"}}}));
    assert_eq!(error, GrammarError::UnsupportedKeywords { keywords });
}

#[test]
fn values_of_gemma_4_follow_every_level_of_their_schema() {
    let format = ToolFormat::Gemma4;
    let schema = json!({
        "type": "object",
        "properties": {
            "to": {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 1, "maxItems": 2},
            "at": {"type": "object", "properties": {"x": {"type": "number"}, "more": {}}, "required": ["x"]},
            "tags": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "mode": {"const": ["a", 1]},
        },
        "required": ["to"],
    });
    let functions = [Callable { name: "get-weather", parameters: &schema }];
    for special in [&[][..], markers(format)] {
        let tokenizer = tokenizer(&[&["<|end|>"], special].concat());
        let grammar =
            call_grammar(&tokenizer, format, &functions, CallLimit::Any, ContentRule::Nothing).unwrap();
        let matcher = matcher(&tokenizer, &grammar);
        let check = |arguments: Value, expect: bool| {
            let one = call("get-weather", arguments);
            let text = write_calls(format, std::slice::from_ref(&one));
            assert_eq!(follows(&tokenizer, &matcher, &text), expect, "{text} {grammar:?}");
            if expect {
                assert_eq!(parsed(format, &schema, &text), (vec![one], false));
            }
        };
        check(json!({"to": ["a}]", "b"]}), true);
        check(
            json!({"to": ["a"], "at": {"x": 1.5, "more": [{"a b": ["\"", null]}, {}]}, "mode": ["a", 1]}),
            true,
        );
        check(json!({"to": [""], "tags": {}}), true);
        check(json!({"to": [""], "tags": {"a": true, "b": false}}), true);
        for wrong in [
            json!({"to": []}),
            json!({"to": ["a", "b", "c"]}),
            json!({"to": ["abcd"]}),
            json!({"to": "a"}),
            json!({"to": ["a"], "at": {"more": 1}}),
            json!({"to": ["a"], "at": {"x": "1"}}),
            json!({"to": ["a"], "tags": {"a": 1}}),
            json!({"to": ["a"], "mode": ["a", 2]}),
            json!({"to": ["a"], "other": 1}),
        ] {
            check(wrong, false);
        }
    }
    for (property, keyword) in [
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "object", "minProperties": 1}), "minProperties"),
        (json!({"oneOf": [{"type": "string"}, {"type": "null"}]}), "oneOf"),
    ] {
        let schema = json!({"properties": {"a": property}});
        let functions = [Callable { name: "f", parameters: &schema }];
        let tokenizer = tokenizer(&["<|end|>"]);
        let found = call_grammar(&tokenizer, format, &functions, CallLimit::Any, ContentRule::Nothing);
        assert_eq!(found.unwrap_err(), GrammarError::UnsupportedKeywords { keywords: keyword.to_owned() });
    }
}

#[test]
fn a_model_may_write_a_call_in_its_own_form_or_text() {
    let tools = Tools::new();
    let matcher_of = |tokenizer: &Tokenizer, format| {
        let grammar = tools.grammar(tokenizer, format, ContentRule::Text).unwrap();
        matcher(tokenizer, &grammar)
    };
    for (format, key) in [
        (ToolFormat::Hermes, "arguments"),
        (ToolFormat::HermesFenced, "arguments"),
        (ToolFormat::LlamaJson, "parameters"),
        (ToolFormat::Phi4Mini, "arguments"),
    ] {
        let tokenizer = tokenizer(&[&["<|end|>"], markers(format)].concat());
        let matcher = matcher_of(&tokenizer, format);
        let check = |text: &str, expect: bool| {
            assert_eq!(follows(&tokenizer, &matcher, text), expect, "{format:?}: {text}");
        };
        let call = format!(r#"{{"name": "get-weather", "{key}": {{"city": "Rome"}}}}"#);
        let spaced = format!("{{\n  \"name\" :\"get-weather\",\n  \"{key}\":{{\"city\": \"Rome\"}}\n}}\n");
        for right in [&call, &spaced, &format!("[{call}]"), &format!("[{call}, {call}]")] {
            check(right, true);
            check(&right.replace("Rome", "Bonn"), false);
            check(&right.replace("get-weather", "other"), true);
            check(&format!("Call {}", right.replace("Rome", "Bonn")), true);
        }
        check(&format!("{call} is a call"), false);
        for text in [
            "{\"city\": \"Rome\"}",
            "{\"name\": \"Ann\", \"age\": 5}",
            "[1, 2]",
            "{",
            "[",
            "```json\n{}\n```",
        ] {
            check(text, true);
        }
    }
    let tokenizer = tokenizer(&[&["<|end|>"], markers(ToolFormat::Hermes)].concat());
    let call = r#"{"name": "get-weather", "arguments": {"city": "Rome"}}"#;
    for format in [ToolFormat::Hermes, ToolFormat::HermesFenced] {
        let matcher = matcher_of(&tokenizer, format);
        for (open, close) in [("```json\n", "\n```"), ("<tools>\n", "\n</tools>")] {
            let text = format!("{open}{call}{close}");
            assert!(follows(&tokenizer, &matcher, &text), "{format:?}: {text}");
            // It is a text of models that write their calls in another way.
            let is_text = follows(&tokenizer, &matcher, &text.replace("Rome", "Bonn"));
            assert_eq!(is_text, format == ToolFormat::Hermes, "{format:?}: {text}");
        }
    }
}

#[test]
fn a_list_of_calls_without_markers_is_valid_or_text() {
    let format = ToolFormat::Lfm2;
    let tokenizer = tokenizer(&[&["<|end|>"], markers(format)].concat());
    let grammar = Tools::new().grammar(&tokenizer, format, ContentRule::Text).unwrap();
    let matcher = matcher(&tokenizer, &grammar);
    let list = r#"[get-weather(city="Rome"), stop()]"#;
    let wrong = list.replace("Rome", "Bonn");
    let texts = [list, &wrong, &format!("Call {wrong}"), "[1, 2]", "[other()]"];
    let found = texts.map(|text| follows(&tokenizer, &matcher, text));
    assert_eq!(found, [true, false, true, true, true]);
}

/// Returns the joined text of events, and true if they have a complete call.
fn text_and_call(events: &[ToolEvent]) -> (String, bool) {
    let texts = events.iter().filter_map(|event| match event {
        ToolEvent::Text(text) | ToolEvent::Malformed(text) => Some(text.as_str()),
        ToolEvent::Begin { .. } | ToolEvent::Arguments(_) | ToolEvent::End => None,
    });
    (texts.collect(), events.contains(&ToolEvent::End))
}

#[test]
fn only_the_token_of_a_marker_begins_a_call() {
    let tools = Tools::new();
    for &format in ToolFormat::ALL {
        let Some(opening) = markers(format).first() else { continue };
        let tokenizer = tokenizer(&[&["<|end|>"], tokens(format)].concat());
        let grammar = tools.grammar(&tokenizer, format, ContentRule::Text).unwrap();
        let written = write_calls(format, &[call("get-weather", json!({"city": "Bonn"}))]);
        let Some(inside) = written.strip_prefix(opening) else { continue };
        let mut matcher = matcher(&tokenizer, &grammar);
        let quotation = format!("Repeat: {written}");
        for token in tokenizer.encode(&quotation, Specials::AsText).unwrap() {
            assert!(is_allowed(&mut matcher, token), "{format:?}: {quotation}");
            matcher.accept(token);
        }
        assert!(is_allowed(&mut matcher, END), "{format:?}");

        let declared = [json!({"type": "function", "function": {"name": "get-weather", "parameters": {}}})];
        for text in [&quotation, &written] {
            let mut parser = ToolParser::new(format, &declared, CallReading::Lenient, markers(format));
            let events = [parser.push(text), parser.finish(TextEnd::Complete)].concat();
            assert_eq!(text_and_call(&events), (text.clone(), false), "{format:?}");
        }
        let mut parser = ToolParser::new(format, &declared, CallReading::Lenient, markers(format));
        let mut events = [parser.push("Look. "), parser.push_marker(opening)].concat();
        let close = markers(format)[1..].iter().find(|close| inside.ends_with(**close));
        events.extend(parser.push(close.map_or(inside, |close| &inside[..inside.len() - close.len()])));
        events.extend(close.into_iter().flat_map(|close| parser.push_marker(close)));
        events.extend(parser.finish(TextEnd::Complete));
        let (text, has_call) = text_and_call(&events);
        assert!(text.trim_end() == "Look." && has_call, "{format:?}: {events:?}");
    }
}

#[test]
fn calls_keep_the_digits_of_large_integers() {
    let large = "18446744073709551617";
    for arguments in [format!(r#"{{"n": {large}, "s": "a"}}"#), format!(r#"{{"a-b": [{large}], "n": null}}"#)]
    {
        let arguments = ExactJson::parse(&arguments).unwrap();
        for &format in ToolFormat::ALL {
            let call = FunctionCall { name: "stop".to_owned(), arguments: arguments.clone() };
            let text = write_calls(format, &[call]);
            assert!(text.contains(large) && !text.contains(&format!("\"{large}\"")), "{format:?}: {text}");
            let declared = json!({"type": "function", "function": {"name": "stop", "parameters": {
                "properties": {"n": {"type": ["integer", "null"]}, "a-b": {"type": "array"}},
            }}});
            let mut parser = ToolParser::new(format, &[declared], CallReading::Exact, &[]);
            let events = [parser.push(&text), parser.finish(TextEnd::Complete)].concat();
            let read = events.iter().filter_map(|event| match event {
                ToolEvent::Arguments(part) => Some(part.as_str()),
                _ => None,
            });
            let read = ExactJson::parse(&read.collect::<String>()).unwrap();
            assert!(read.to_string().contains(large), "{format:?}: {text} became {read}");
        }
    }
}

#[test]
fn text_where_a_call_should_stand_is_not_withheld() {
    let words = "and this is no call of any tool but only a long text ".repeat(40);
    let mut withheld = Vec::new();
    for &format in ToolFormat::ALL {
        let written = write_calls(format, &[call("get-weather", json!({"city": "Rome", "days": 2}))]);
        let declared = [json!({"type": "function", "function": {"name": "get-weather", "parameters": {
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        }}})];
        // Inside of a string, any text is a part of its value.
        let before_string = &written[..written.find("Rome").unwrap() - 1];
        let before_string = before_string.split(">\n<parameter=city>").next().unwrap();
        // The arguments of a call without a marker are withheld until the answer ends.
        let is_bare = before_string.starts_with('{');
        let before_string =
            before_string.rsplit_once('{').filter(|_| is_bare).map_or(before_string, |(head, _)| head);
        for beginning in (0..=before_string.len()).map(|at| &before_string[..at]) {
            let mut parser = ToolParser::new(format, &declared, CallReading::Lenient, &[]);
            let mut events = parser.push(beginning);
            events.extend(words.split_inclusive(' ').flat_map(|word| parser.push(word)));
            let parts = events.iter().filter_map(|event| match event {
                ToolEvent::Text(text) | ToolEvent::Malformed(text) | ToolEvent::Arguments(text) => {
                    Some(text.len())
                }
                ToolEvent::Begin { .. } | ToolEvent::End => None,
            });
            let passed: usize = parts.sum();
            if passed + 1000 < words.len() {
                withheld.push(format!("{format:?}: {passed} bytes after {beginning:?}"));
            }
        }
    }
    assert!(withheld.is_empty(), "{}", withheld.join("\n"));
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ -~\n\t\u{8}\u{1f}\"'\\\\é漢🙂]{0,12}".prop_map(Value::from),
        "[0-9]{1,4}|true|None|null".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z\"é ]{1,5}", inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn written_calls_are_read_back(pairs in prop::collection::vec(("[a-z_\"é-]{1,6}", values()), 0..4)) {
        let arguments = Value::Object(pairs.into_iter().collect());
        let calls = [call("get-weather", arguments), call("stop", json!({}))];
        for &format in ToolFormat::ALL.iter().filter(|format| !examples(**format).needs_types) {
            let count = examples(format).max_calls;
            let text = write_calls(format, &calls[..count]);
            prop_assert_eq!(parsed(format, &Value::Null, &text), (calls[..count].to_vec(), false), "{}", text);
        }
    }

    #[test]
    fn written_tags_are_read_back(
        city in "[ -~\n\"'\\\\é漢🙂]{0,20}", days in any::<i32>(), more in values(), free in "[ -~]{0,9}",
    ) {
        let schema = json!({"properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "array"},
            "free": {"type": ["string", "null"]},
        }});
        let arguments = json!({"city": city, "days": days, "more": [more], "free": format!("x{free}")});
        let calls = vec![call("get-weather", arguments)];
        let text = write_calls(ToolFormat::QwenCoder, &calls);
        prop_assert_eq!(parsed(ToolFormat::QwenCoder, &schema, &text), (calls, false), "{}", text);
    }
}
