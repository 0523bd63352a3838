//! Reduced models: they have names of their own, answer requests, and state their loss of quality.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use narthex_compile::vocab_subset::Source;
use narthex_gateway::{
    Cancel, CompileRequest, Error, ErrorKind, Rebuild, VocabSubset, request::GenerateOptions,
};
use narthex_spec::{
    Pass, Scheme,
    manifest::{Manifest, Quality},
    progress::Quiet,
};

use crate::support::{Tiny, ask, greedy, question};

fn compile(tiny: &Tiny, request: CompileRequest) -> Result<Manifest, Error> {
    let request = CompileRequest { rebuild: Rebuild::Always, ..request };
    let made = tiny.gateway().compile(&tiny.checkpoint(), &request, &Quiet, &Cancel::new());
    made.map(|(_, manifest)| manifest)
}

fn without(layers: &str) -> CompileRequest {
    CompileRequest { drop_layers: Some(layers.parse().unwrap()), ..CompileRequest::new(Scheme::W8) }
}

#[test]
fn a_model_without_a_layer_states_its_loss() {
    let tiny = Tiny::new();
    let manifest = compile(&tiny, without("1")).unwrap();
    assert!(manifest.name.as_str().ends_with("-drop1"), "{}", manifest.name);
    assert!(manifest.recipe.fixed.is_none() && manifest.quality.is_none());
    let Some(Quality::Decoder { positions, divergence, mass: None, .. }) = manifest.loss else {
        panic!("{:?}", manifest.loss)
    };
    assert!(positions > 50 && divergence > 0.0, "{:?}", manifest.loss);
    let answer = ask(&tiny.gateway(), manifest.name.as_str(), question("the cat", greedy(4)));
    assert_eq!(answer.summary.completion_tokens, 4);
    // The cost of a pass is measured against the model without the layer.
    let passes = Some([Pass::SplitHeads].into());
    let manifest = compile(&tiny, CompileRequest { passes, ..without("1") }).unwrap();
    let Some(Quality::Decoder { divergence: passed, .. }) = manifest.quality else { panic!("no quality") };
    assert!(passed.abs() < 0.01 && manifest.loss.is_some(), "{manifest:?}");
}

#[test]
fn a_pruned_model_answers_with_the_tokens_that_it_keeps() {
    let tiny = Tiny::new();
    let text = "the cat sat. the cat. the";
    let pruned = |text: &str, most| CompileRequest {
        vocabulary: Some(VocabSubset { source: Source::Text(text.to_owned()), most }),
        ..CompileRequest::new(Scheme::W8)
    };
    let manifest = compile(&tiny, pruned(text, Some(262))).unwrap();
    assert!(manifest.name.as_str().contains("-vocab262-"), "{}", manifest.name);
    assert_eq!(manifest.recipe.vocabulary.unwrap().tokens, 262);
    let Some(Quality::Decoder { divergence, mass: Some(mass), .. }) = manifest.loss else {
        panic!("{:?}", manifest.loss)
    };
    assert!((0.2..1.0).contains(&mass) && divergence.abs() < 0.01, "{:?}", manifest.loss);
    // Any token of the reduced vocabulary may be generated: at this temperature most of the answer is random tokens.
    let options = GenerateOptions { temperature: Some(2.0), seed: Some(5), ..greedy(40) };
    let answer = ask(&tiny.gateway(), manifest.name.as_str(), question("the cat", options));
    assert_eq!(answer.summary.completion_tokens, 40);
    let error = compile(&tiny, pruned("", None)).unwrap_err();
    assert!(error.kind() == ErrorKind::BadRequest && error.to_string().contains("found none"), "{error}");
}

#[test]
fn layers_that_are_not_there_are_refused() {
    let tiny = Tiny::new();
    let check = |request: CompileRequest, expect: &str| {
        let error = compile(&tiny, request).unwrap_err();
        assert!(error.kind() == ErrorKind::BadRequest && error.to_string().contains(expect), "{error}");
    };
    check(without("2"), "expected layers to drop from 0 to 1, with at least one left, found [2]");
    check(without("0-1"), "with at least one left, found [0, 1]");
    let twice = CompileRequest { matformer: Some("e2b".parse().unwrap()), ..without("1") };
    check(twice, "expected the dropped layers in one setting");
}
