//! Finds the sentence nearest in meaning to a query: `cargo run --example semantic_search -p narthex-gateway -- "a baby
//! cat"`.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use narthex_gateway::{Cancel, Config, Gateway, request::EmbedRequest};
use narthex_spec::progress::Quiet;

const SENTENCES: [&str; 5] = [
    "The kitten sleeps on the warm windowsill.",
    "Quarterly revenue rose by eight percent.",
    "The ferry leaves the harbour at dawn.",
    "She repaired the old bicycle in an afternoon.",
    "Heavy rain is expected in the mountains.",
];

fn main() -> Result<(), Box<dyn Error>> {
    let query = std::env::args().nth(1).unwrap_or_else(|| "a baby cat".to_owned());
    narthex_gateway::disable_telemetry();
    let gateway = Gateway::open(Config::standard())?;
    let cancel = Cancel::new();
    let model = gateway.load("all-minilm-l6-v2", &Quiet, &cancel)?.id();
    let texts = SENTENCES.into_iter().chain([query.as_str()]);
    let vectors = gateway.embed(&model, &EmbedRequest::new(texts), &cancel)?.vectors;
    let (query, sentences) = vectors.split_last().ok_or("the model returned no vector")?;
    // The vectors have unit length, so that their product is their cosine.
    let cosine = |vector: &[f32]| vector.iter().zip(query).map(|(a, b)| a * b).sum::<f32>();
    let mut ranked: Vec<(f32, &str)> = sentences.iter().map(|vector| cosine(vector)).zip(SENTENCES).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (cosine, sentence) in ranked {
        println!("{cosine:.3}  {sentence}");
    }
    Ok(())
}
