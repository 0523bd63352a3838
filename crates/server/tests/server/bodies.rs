//! Bodies with arbitrary JSON, none of which may cause an internal error of the server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::cell::Cell;

use proptest::{
    prelude::*,
    sample::Index,
    test_runner::{TestCaseError, TestRunner},
};
use serde_json::{Map, Value, json};

use crate::support::{Live, Tiny, with};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";
const PATHS: [&str; 3] = [CHAT, COMPLETIONS, EMBEDDINGS];

/// Returns a valid request with every known field.
fn valid(path: &str, chat: &str, embedding: &str) -> Value {
    let sampling = json!({
        "max_tokens": 4, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"7": 5}, "seed": 3, "draft": true, "stop": ["a", "b"],
        "n": 2, "stream": false, "stream_options": {"include_usage": true}, "user": "anna",
    });
    let own = match path {
        CHAT => json!({
            "model": chat, "logprobs": true, "top_logprobs": 2, "tools": [], "tool_choice": "none",
            "response_format": {"type": "text"}, "messages": [
                {"role": "system", "content": "be brief"}, {"role": "assistant", "content": null},
                {"role": "user", "content": [{"type": "text", "text": "the cat"}], "name": "anna"},
            ],
        }),
        COMPLETIONS => json!({"model": chat, "prompt": "the cat", "logprobs": 2, "echo": true, "best_of": 2}),
        _ => {
            return json!({
                "model": embedding, "input": ["the cat", "a dog"], "encoding_format": "base64", "dimensions": 8,
                "truncate": true,
            });
        }
    };
    with(own, sampling)
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3i64..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-3.0..3.0f64).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        "[a-z ]{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "user",
            "assistant",
            "tool",
            "text",
            "base64",
            "none",
            "<|im_end|>",
            "\u{0}"
        ])
        .prop_map(Value::from),
    ]
}

fn key() -> impl Strategy<Value = String> {
    let known = [
        "model",
        "messages",
        "prompt",
        "input",
        "role",
        "content",
        "type",
        "text",
        "stop",
        "n",
        "stream",
        "seed",
        "temperature",
        "logit_bias",
        "logprobs",
        "tools",
        "dimensions",
        "truncate",
        "0",
        "299",
        "300",
    ];
    prop_oneof![prop::sample::select(known.to_vec()).prop_map(str::to_owned), ".{0,6}"]
}

/// Generates JSON, biased towards names and values of the API.
fn any_json() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((key(), inner), 0..6)
                .prop_map(|fields| Value::from(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Collects the JSON pointers to a value and to all values in it.
fn places(value: &Value, here: &str, found: &mut Vec<String>) {
    found.push(here.to_owned());
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| places(item, &format!("{here}/{at}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(key, field)| places(field, &format!("{here}/{key}"), found))
        }
        _ => {}
    }
}

/// Change of one value in a valid request.
#[derive(Debug, Clone)]
enum Change {
    Replace(Value),
    /// Replaces the value by one of the same kind, or removes one element of a list or an object.
    Vary {
        number: i64,
        fraction: f64,
        text: String,
    },
    /// Replaces the value by a list with this number of copies.
    Repeat(usize),
    Add(String, Value),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (-1i64..9, -0.1..1.1f64, "[a-z ]{0,9}").prop_map(|(number, fraction, text)| Change::Vary {
            number,
            fraction,
            text,
        }),
        2 => any_json().prop_map(Change::Replace),
        1 => (0..40usize).prop_map(Change::Repeat),
        1 => (key(), any_json()).prop_map(|(key, value)| Change::Add(key, value)),
    ]
}

fn apply(request: &mut Value, place: &Index, change: Change) {
    let mut all = Vec::new();
    places(request, "", &mut all);
    let Some(spot) = request.pointer_mut(place.get(all.as_slice()).as_str()) else { return };
    match (change, spot) {
        (Change::Replace(value), spot) => *spot = value,
        (Change::Vary { number, fraction, text }, spot) => match spot {
            Value::Null => {}
            Value::Bool(flag) => *flag = !*flag,
            Value::Number(found) if found.is_f64() => *spot = fraction.into(),
            Value::Number(_) => *spot = number.into(),
            Value::String(found) => *found = text,
            Value::Array(items) => {
                let at = number.unsigned_abs() as usize % items.len().max(1);
                items.drain(at..items.len().min(at + 1));
            }
            Value::Object(fields) => {
                let at = number.unsigned_abs() as usize % fields.len().max(1);
                fields.retain({
                    let mut index = 0..;
                    move |_, _| index.next() != Some(at)
                });
            }
        },
        (Change::Repeat(times), spot) => *spot = vec![spot.clone(); times].into(),
        (Change::Add(key, value), Value::Object(fields)) => drop(fields.insert(key, value)),
        (Change::Add(_, value), spot) => *spot = value,
    }
}

/// Sends a request and returns the status. Checks that the answer is not an internal error, and that errors are in
/// OpenAI's form.
fn send(live: &Live, path: &str, body: &Value) -> Result<u16, TestCaseError> {
    let answer = live.post(path, body);
    prop_assert!(answer.status < 500, "{path} {body}: {}", answer.text());
    if answer.status != 200 {
        answer.error(answer.status);
    }
    Ok(answer.status)
}

fn runner() -> TestRunner {
    // A failure prints its input, so no file of failures beside the sources is needed.
    TestRunner::new(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })
}

#[test]
fn whatever_json_comes_in_is_answered() {
    let tiny = Tiny::new();
    let (chat, embedding) = (tiny.chat(), tiny.embedding());
    let live = Live::start(tiny.config());
    for path in PATHS {
        assert_eq!(send(&live, path, &valid(path, &chat, &embedding)).unwrap(), 200, "{path}");
    }
    let bodies = (prop::sample::select(&PATHS[..]), any_json());
    runner()
        .run(&bodies, |(path, body)| send(&live, path, &body).map(drop))
        .unwrap_or_else(|e| panic!("{e}"));

    let changes = prop::collection::vec((any::<Index>(), change()), 1..4);
    let answered = Cell::new(0);
    let outcome = runner().run(&(prop::sample::select(&PATHS[..]), changes), |(path, changes)| {
        let mut body = valid(path, &chat, &embedding);
        for (place, change) in changes {
            apply(&mut body, &place, change);
        }
        answered.set(answered.get() + usize::from(send(&live, path, &body)? == 200));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    // Changes that always make the request invalid would not test the models.
    assert!(answered.get() > 50, "{}", answered.get());
}
