//! `/v1/decisions` and `/v1/systemone`: probabilities of the answers to closed questions.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::thread;

use serde_json::{Value, json};

use crate::support::{Live, Tiny, chat};

const SYSTEM_ONE: &str = "/v1/systemone";

fn questions() -> Value {
    json!({
        "noul": {"type": "noul", "instructions": "the cat?"},
        "choice": {"type": "choice", "instructions": "which?", "criteria": {"cat": "the cat", "dog": null, "ferry": null}},
        "score": {"type": "score", "criteria": ["low", "high"]},
    })
}

/// Returns the sum of the values of a JSON object.
fn sum(probabilities: &Value) -> f64 {
    probabilities.as_object().unwrap().values().map(|value| value.as_f64().unwrap()).sum()
}

#[test]
fn equal_questions_have_equal_probabilities_beside_other_requests() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let body = json!({"model": model, "state": {"text": "the cat sat"}, "questions": questions()});
    let ask = || live.post(SYSTEM_ONE, &body).json();
    let first = ask();
    let answers = &first["answers"];
    let noul = answers["noul"]["noul"].as_f64().unwrap();
    assert!(noul > 0.0 && noul < 1.0, "{first}");
    let choice = &answers["choice"];
    assert!((sum(&choice["probabilities"]) - 1.0).abs() < 1e-9, "{first}");
    let best = choice["choice"].as_str().unwrap();
    let probabilities = choice["probabilities"].as_object().unwrap();
    assert!(probabilities.values().all(|other| other.as_f64() <= probabilities[best].as_f64()), "{first}");
    assert_eq!(answers["score"]["legend"], json!({"0": "low", "1": "high"}));
    assert_eq!(answers["score"]["score"], answers["score"]["probabilities"]["1"]);
    assert_eq!(first["usage"]["output_tokens"], 0);

    // A question has the same answer alone, after others, and while other requests run.
    let alone = json!({"model": model, "state": {"text": "the cat sat"}, "questions": {"score": questions()["score"]}});
    assert_eq!(live.post(SYSTEM_ONE, &alone).json()["answers"]["score"], answers["score"]);
    thread::scope(|scope| {
        let others: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| live.post("/v1/chat/completions", &chat(&model, 24)).status))
            .collect();
        let decided: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        for decision in decided {
            assert_eq!(&decision.join().unwrap()["answers"], answers);
        }
        assert!(others.into_iter().all(|other| other.join().unwrap() == 200));
    });
}

#[test]
fn both_protocols_give_the_same_probabilities() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let live = Live::start(tiny.config());
    let systemone =
        live.post(SYSTEM_ONE, &json!({"model": model, "state": "the cat", "questions": questions()}));
    let choices = json!([{"value": "cat", "description": "the cat"}, {"value": "dog"}, {"value": "ferry"}]);
    let openai = live.post(
        "/v1/decisions",
        &json!({
            "model": model,
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "the cat"}]}],
            "questions": [
                {"type": "predicate", "name": "a", "instructions": "the cat?"},
                {"type": "choice", "instructions": "which?", "choices": choices},
                {"type": "score", "instructions": "score", "levels": [{"label": "low"}, {"label": "high"}]},
            ],
            "safety_identifier": "me",
        }),
    );
    let (systemone, openai) = (systemone.json(), openai.json());
    let (answers, expect) = (&openai["answers"], &systemone["answers"]);
    assert_eq!((&answers[0]["name"], &answers[0]["probability"]), (&json!("a"), &expect["noul"]["noul"]));
    assert_eq!(answers[1]["choice"], expect["choice"]["choice"]);
    assert_eq!(answers[1]["probabilities"][0]["probability"], expect["choice"]["probabilities"]["cat"]);
    assert_eq!(
        (&answers[2]["score"], &answers[2]["confidence"]),
        (&expect["score"]["score"], &expect["score"]["confidence"])
    );
    assert!(openai["usage"]["input_tokens_details"]["cached_tokens"].as_u64() > Some(0), "{openai}");
}

#[test]
fn what_cannot_be_decided_is_refused_by_name() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let live = Live::start(tiny.config());
    let check = |path: &str, body: Value, param: &str, expect: &str| {
        let answer = live.post(path, &body);
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, error["param"].as_str()), (400, Some(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(expect), "{error}");
    };
    let noul = json!({"q": {"type": "noul"}});
    let ask = |questions: Value| json!({"model": model, "state": "a", "questions": questions});
    check(SYSTEM_ONE, ask(json!({})), "questions", "expected 1 to 200 questions, found 0");
    check(
        SYSTEM_ONE,
        ask(json!({"q": {"type": "score", "criteria": vec!["a"; 27]}})),
        "questions",
        "found 27",
    );
    check(SYSTEM_ONE, ask(json!({"q": {"type": "box"}})), "questions.q", "box");
    check(SYSTEM_ONE, json!({"model": embedding, "state": "a", "questions": noul}), "model", "embedding");
    let picture = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]);
    let question = json!([{"type": "predicate", "instructions": "b"}]);
    let body = json!({"model": model, "input": picture, "questions": question});
    check("/v1/decisions", body, "input", "input_image");
    let body = json!({"model": model, "input": [{"role": "system", "content": "a"}], "questions": question});
    check("/v1/decisions", body, "input", "\"system\"");
}
