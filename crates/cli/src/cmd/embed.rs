//! `narthex embed`: one vector for each text, as lines of JSON.

use std::io::{IsTerminal, stdout};

use narthex_gateway::{
    Gateway,
    models::ModelKind,
    request::{EmbedRequest, InputOverflow, Prompt},
};
use serde::Serialize;

use crate::{args::EmbedArgs, bars::Bars, interrupt, output, standard_input};

/// Texts per request.
const BATCH: usize = 256;

#[derive(Serialize)]
struct EmbedOutput<'a> {
    model: &'a str,
    embeddings: Vec<Item<'a>>,
    prompt_tokens: usize,
}

#[derive(Serialize)]
struct Item<'a> {
    text: &'a str,
    embedding: Vec<f32>,
}

/// Number of elements of a vector that a terminal shows.
const SHOWN: usize = 6;

/// Returns a vector as JSON, or its beginning and its length for a terminal.
fn vector(embedding: &[f32], is_shortened: bool) -> anyhow::Result<String> {
    if !is_shortened || embedding.len() <= SHOWN {
        return Ok(serde_json::to_string(embedding)?);
    }
    let beginning: Vec<String> = embedding.iter().take(SHOWN).map(|value| format!("{value:.4}")).collect();
    Ok(format!("[{}, …] {} numbers", beginning.join(", "), embedding.len()))
}

/// Embeds the given texts, or each line of standard input.
pub(crate) fn run(gateway: &Gateway, args: &EmbedArgs) -> anyhow::Result<()> {
    let texts = if args.texts.is_empty() {
        standard_input::lines("Type the texts, one per line")?
    } else {
        args.texts.clone()
    };
    super::check_texts("text", &texts, "pass texts as arguments, or one per line on standard input")?;

    let status = super::load(gateway, &args.model, &[ModelKind::Embedding], &Bars::new())?;
    let mut report = EmbedOutput { model: &args.model, embeddings: Vec::new(), prompt_tokens: 0 };
    for batch in texts.chunks(BATCH) {
        let request = EmbedRequest {
            inputs: batch.iter().cloned().map(Prompt::Text).collect(),
            overlong: if args.truncate { InputOverflow::Truncate } else { InputOverflow::Refuse },
            dimensions: args.dimensions,
            prompt: args.prompt.clone(),
        };
        let answer = gateway.embed(&status.id(), &request, interrupt::cancel())?;
        report.prompt_tokens += answer.prompt_tokens;
        for (text, embedding) in batch.iter().zip(answer.vectors) {
            if args.json {
                report.embeddings.push(Item { text, embedding });
            } else {
                output::line(vector(&embedding, stdout().is_terminal())?)?;
            }
        }
    }
    if args.json { output::json(&report) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_the_beginning_of_a_long_vector() {
        let long = vec![0.123_456; 384];
        assert_eq!(vector(&long[..2], true).unwrap(), "[0.123456,0.123456]");
        let shown = vector(&long, true).unwrap();
        assert_eq!(shown, format!("[{}, …] 384 numbers", ["0.1235"; SHOWN].join(", ")));
        let whole: Vec<f32> = serde_json::from_str(&vector(&long, false).unwrap()).unwrap();
        assert_eq!(whole, long);
    }
}
