//! Comparison of the embeddings of 64 texts with those of sentence-transformers, and with embeddings of the same texts
//! in other batches.

use narthex_gateway::{
    Cancel,
    request::{EmbedRequest, InputOverflow, Prompt},
};
use narthex_spec::Scheme;

use crate::{GATEWAY, goldens, package};

pub(crate) const MODEL: &str = "all-minilm-l6-v2";

/// Maximum change of an element, in `f32`, by the other texts of a batch.
const BATCH: f32 = 1e-5;

fn embed(scheme: Scheme, texts: &[&str]) -> Vec<Vec<f32>> {
    package(MODEL, scheme);
    let inputs = texts.iter().map(|&text| Prompt::Text(text.to_owned())).collect();
    let request = EmbedRequest { inputs, overlong: InputOverflow::Refuse, dimensions: None, prompt: None };
    GATEWAY.lock().unwrap().embed(&format!("{MODEL}@{scheme}"), &request, &Cancel::new()).unwrap().vectors
}

pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn vectors_are_the_references() {
    let goldens = goldens::encoder();
    let texts: Vec<&str> = goldens.iter().map(|(text, _)| text.as_str()).collect();
    for (scheme, bound) in [(Scheme::F32, 0.9999), (Scheme::W8, 0.999)] {
        let vectors = embed(scheme, &texts);
        assert_eq!(vectors.len(), goldens.len());
        let cosines = vectors.iter().zip(&goldens).map(|(vector, (_, golden))| cosine(vector, golden));
        let least = cosines.fold(f64::INFINITY, f64::min);
        println!("{scheme}: least cosine {least:.7}");
        assert!(least >= bound, "{scheme}: {least}");
    }
}

#[test]
fn company_in_a_batch_changes_nothing() {
    let goldens = goldens::encoder();
    let texts: Vec<&str> = goldens.iter().map(|(text, _)| text.as_str()).collect();
    let together = embed(Scheme::F32, &texts);
    let mut largest = 0.0_f32;
    for (text, vector) in texts.iter().zip(&together) {
        let alone = embed(Scheme::F32, &[text]).remove(0);
        let differences = alone.iter().zip(vector).map(|(a, b)| (a - b).abs());
        largest = differences.fold(largest, f32::max);
    }
    println!("largest change {largest:.1e}");
    assert!(largest <= BATCH, "{largest}");
}
