//! Reranking with a language model that answers yes or no compared with the steps of its model card (`goldens/scorers.py`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, path::PathBuf};

use narthex_gateway::{
    Cancel, Error,
    request::{Classification, ClassifierInput, ClassifyRequest, InputOverflow, Ranking, RerankRequest},
};
use serde_json::Value;

use crate::support::Tiny;

#[test]
fn a_reranker_reads_pairs_in_its_template() {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../device/tests/goldens/scorers/qwen3_answers");
    let text = fs::read(folder.join("pairs.json")).unwrap();
    let pairs: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let tiny = Tiny::new();
    let model = tiny.compile(folder);
    let gateway = tiny.gateway();
    let rank = |query: &str, document: &str, overlong| -> Result<Ranking, Error> {
        let documents = vec![document.to_owned()];
        let request = RerankRequest { query: query.to_owned(), documents, top_n: None, overlong };
        gateway.rerank(&model, &request, &Cancel::new())
    };

    for pair in &pairs {
        let [query, document] = ["query", "document"].map(|key| pair[key].as_str().unwrap());
        let found = rank(query, document, InputOverflow::Refuse).unwrap();
        assert_eq!(Some(found.prompt_tokens as u64), pair["tokens"].as_u64(), "{pair}");
        let near = |score: f32| (f64::from(score) - pair["score"].as_f64().unwrap()).abs() < 1e-3;
        assert!(near(found.results[0].score), "{found:?}, not {pair}");
        let input = ClassifierInput::Pair(query.to_owned(), document.to_owned());
        let request = ClassifyRequest { inputs: vec![input], ..ClassifyRequest::new([""; 0]) };
        let found = gateway.classify(&model, &request, &Cancel::new()).unwrap();
        let Classification::Text(scores) = &found.results[0] else { panic!("{found:?}") };
        assert!(found.labels == ["yes"] && near(scores.scores[0]), "{found:?}, not {pair}");
    }

    // What does not fit is cut from the document, and the template stays whole.
    let long = "The ferry leaves. ".repeat(200);
    assert_eq!(rank("when", &long, InputOverflow::Truncate).unwrap().prompt_tokens, 1024);
    let error = rank("when", &long, InputOverflow::Refuse).unwrap_err().to_string();
    assert!(error.contains("document 0 have") && error.contains("at most 1024"), "{error}");
    let error = rank(&long, "a", InputOverflow::Truncate).unwrap_err().to_string();
    assert!(error.contains("this model allows at most 1024"), "{error}");
}
