//! A draft model of the settings: its load, its limits and the models that it fits.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use narthex_gateway::{
    Cancel, Config, Error, Gateway,
    models::ModelStatus,
    request::{EmbedRequest, GenerateOptions},
};
use narthex_spec::{Speculation, progress::Quiet};
use narthex_testkit::checkpoint::{Gguf, Meta, tiny_llama, tiny_tokenizer_json};
use serde_json::Value;

use crate::support::{SEED, Tiny, ask, greedy, question};

/// Returns the tiny Llama with two tokens of its vocabulary exchanged.
fn with_other_vocabulary() -> Gguf {
    let tokenizer: Value = serde_json::from_slice(&tiny_tokenizer_json()).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocabulary.len()];
    for (text, id) in vocabulary {
        tokens[id.as_u64().unwrap() as usize] = text.clone();
    }
    tokens.swap(200, 201);
    let mut gguf = tiny_llama(SEED);
    gguf.set("tokenizer.ggml.tokens", Meta::Texts(tokens));
    gguf
}

fn open(tiny: &Tiny, draft_model: &str) -> Gateway {
    Gateway::open(Config { draft_model: Some(draft_model.to_owned()), ..tiny.config() }).unwrap()
}

fn load(gateway: &Gateway, model: &str) -> Result<ModelStatus, Error> {
    gateway.load(model, &Quiet, &Cancel::new())
}

#[test]
fn answers_are_those_of_the_model_alone() {
    let tiny = Tiny::new();
    let model = tiny.chat();
    let same = tiny.gguf_chat("same", &tiny_llama(SEED));
    let other = tiny.gguf_chat("other", &tiny_llama(SEED + 1));
    let plain = Gateway::open(Config { speculation: Speculation::Off, ..tiny.config() }).unwrap();
    let warm = GenerateOptions { temperature: Some(0.8), seed: Some(5), ..greedy(60) };
    for draft in [&same, &other] {
        let gateway = open(&tiny, draft);
        for options in [greedy(60), warm.clone()] {
            let request = || question("the cat sat on the mat", options.clone());
            let (alone, drafted) = (ask(&plain, &model, request()), ask(&gateway, &model, request()));
            assert_eq!((drafted.text, drafted.reason), (alone.text, alone.reason), "{draft}");
        }
        let status = gateway.status().remove(0);
        let (counters, loaded) = (status.engine.unwrap(), status.draft_model.unwrap());
        assert_eq!(loaded.name.as_str(), draft.as_str());
        let package = gateway.model(draft).unwrap().installed.remove(0);
        assert!(loaded.bytes > 0 && loaded.bytes <= package.bytes, "{loaded:?} of {}", package.bytes);
        // Nothing is measured yet when the first draft is made, so it is made on any machine.
        let drafted = counters.accepted_tokens + counters.rejected_tokens;
        assert!(drafted > 0 && (draft == &other || counters.accepted_tokens > 0), "{counters:?}");
        let alone = plain.status()[0].engine.unwrap();
        assert!(counters.kv_budget_bytes > alone.kv_budget_bytes, "{counters:?}");
    }
}

#[test]
fn a_draft_model_has_none_and_encoders_have_none() {
    let tiny = Tiny::new();
    let (model, draft) = (tiny.chat(), tiny.gguf_chat("same", &tiny_llama(SEED)));
    let (embedding, gateway) = (tiny.embedding(), open(&tiny, &draft));
    gateway.embed(&embedding, &EmbedRequest::new(["the cat"]), &Cancel::new()).unwrap();
    for (model, expected) in [(&model, Some(&draft)), (&draft, None), (&embedding, None)] {
        let found = load(&gateway, model).unwrap().draft_model.map(|draft| draft.name.to_string());
        assert_eq!(found.as_ref(), expected, "{model}");
    }
    let off = Config { speculation: Speculation::Off, ..gateway.config().clone() };
    assert_eq!(load(&Gateway::open(off).unwrap(), &model).unwrap().draft_model, None);
}

#[test]
fn a_model_that_does_not_fit_is_refused_by_name() {
    let tiny = Tiny::new();
    let (model, embedding) = (tiny.chat(), tiny.embedding());
    let foreign = tiny.gguf_chat("foreign", &with_other_vocabulary());
    let check = |draft: &str, expected: &[&str]| {
        let error = load(&open(&tiny, draft), &model).unwrap_err().to_string();
        assert!(expected.iter().all(|expected| error.contains(expected)), "{error}");
    };
    check(&foreign, &[&model, &foreign, "token 200 is"]);
    check(&embedding, &[&embedding, "is an embedding model, not a chat model"]);
    check("smollm2:135m", &["smollm2:135m is not installed"]);
    let unknown = Config { draft_model: Some("no-such-model".to_owned()), ..tiny.config() };
    let error = Gateway::open(unknown).err().unwrap().to_string();
    assert!(error.contains("draft_model: no model is named \"no-such-model\""), "{error}");
}

#[test]
fn the_cache_of_a_draft_model_counts_towards_the_total() {
    let tiny = Tiny::new();
    let (model, draft) = (tiny.chat(), tiny.gguf_chat("same", &tiny_llama(SEED)));
    let config = |kv_total: usize, draft: Option<&String>| Config {
        draft_model: draft.cloned(),
        kv_budget: Some(1 << 20),
        kv_total: Some(kv_total),
        load_wait: Duration::ZERO,
        ..tiny.config()
    };
    let budget = |draft: Option<&String>| {
        let gateway = Gateway::open(config(1 << 30, draft)).unwrap();
        load(&gateway, &model).unwrap().engine.unwrap().kv_budget_bytes
    };
    assert_eq!(budget(None), 1 << 20);
    let both = budget(Some(&draft));
    assert!(both > 1 << 20, "{both}");
    assert!(load(&Gateway::open(config(both, Some(&draft))).unwrap(), &model).is_ok());
    let error = load(&Gateway::open(config(both - 1, Some(&draft))).unwrap(), &model).unwrap_err();
    assert!(matches!(error, Error::ResidencyFull { .. }), "{error}");
}
