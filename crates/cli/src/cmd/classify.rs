//! `narthex classify`: the label of each text, or the entities in it.

use narthex_gateway::{
    Gateway,
    models::ModelKind,
    request::{
        Classification, Classifications, ClassifierInput, ClassifyRequest, Entity, InputOverflow, LabelScores,
    },
};
use serde::Serialize;

use crate::{args::ClassifyArgs, bars::Bars, interrupt, output, standard_input};

/// Texts per request.
const BATCH: usize = 256;

/// Kinds of models that the command runs.
const KINDS: [ModelKind; 3] = [ModelKind::Classification, ModelKind::TokenClassification, ModelKind::Rerank];

#[derive(Serialize)]
struct ClassifyOutput<'a> {
    model: &'a str,
    results: Vec<TextOutput<'a>>,
    prompt_tokens: usize,
}

#[derive(Serialize)]
struct TextOutput<'a> {
    text: &'a str,
    #[serde(flatten)]
    found: FoundOutput,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum FoundOutput {
    /// Labels in descending order of their scores.
    Labels(Vec<LabelOutput>),
    Entities(Vec<EntityOutput>),
}

#[derive(Serialize)]
struct LabelOutput {
    label: String,
    score: f32,
}

/// Offsets are in characters and in bytes.
#[derive(Serialize)]
struct EntityOutput {
    label: String,
    score: f32,
    text: String,
    start: usize,
    end: usize,
    start_byte: usize,
    end_byte: usize,
}

impl FoundOutput {
    fn new(found: Classification, labels: &[String]) -> Self {
        match found {
            Classification::Text(LabelScores { scores, .. }) => {
                let scored = scores.into_iter().zip(labels);
                let mut scored: Vec<LabelOutput> =
                    scored.map(|(score, label)| LabelOutput { label: label.clone(), score }).collect();
                scored.sort_by(|a, b| b.score.total_cmp(&a.score));
                Self::Labels(scored)
            }
            Classification::Entities(entities) => {
                let entities = entities.into_iter().map(|entity| {
                    let Entity { label, score, text, bytes, chars } = entity;
                    let [start, end] = [chars.start, chars.end];
                    EntityOutput {
                        label,
                        score,
                        text,
                        start,
                        end,
                        start_byte: bytes.start,
                        end_byte: bytes.end,
                    }
                });
                Self::Entities(entities.collect())
            }
        }
    }

    /// Renders the result of the text with a number: a line for each of `top_k` labels, or for each entity.
    fn lines(&self, number: usize, text: &str, top_k: usize) -> Vec<String> {
        match self {
            Self::Labels(labels) => {
                let labels = labels.iter().take(top_k);
                labels.map(|found| format!("{:.4}\t{}\t{text}", found.score, found.label)).collect()
            }
            Self::Entities(entities) => entities
                .iter()
                .map(|EntityOutput { label, score, text, start, end, .. }| {
                    format!("{number}\t{score:.4}\t{label}\t{start}..{end}\t{text}")
                })
                .collect(),
        }
    }
}

/// Classifies the given texts, or each line of standard input.
pub(crate) fn run(gateway: &Gateway, args: &ClassifyArgs) -> anyhow::Result<()> {
    let texts = if args.texts.is_empty() {
        standard_input::lines("Type the texts, one per line")?
    } else {
        args.texts.clone()
    };
    super::check_texts("text", &texts, "pass texts as arguments, or one per line on standard input")?;

    let status = super::load(gateway, &args.model, &KINDS, &Bars::new())?;
    let mut report = ClassifyOutput { model: &args.model, results: Vec::new(), prompt_tokens: 0 };
    for (batch, texts) in texts.chunks(BATCH).enumerate() {
        let request = ClassifyRequest {
            inputs: texts.iter().cloned().map(ClassifierInput::Text).collect(),
            overlong: if args.truncate { InputOverflow::Truncate } else { InputOverflow::Refuse },
            aggregation: args.aggregation.into(),
        };
        let found = gateway.classify(&status.id(), &request, interrupt::cancel())?;
        let Classifications { labels, results, prompt_tokens, .. } = found;
        report.prompt_tokens += prompt_tokens;

        for (index, (text, found)) in texts.iter().zip(results).enumerate() {
            let found = FoundOutput::new(found, &labels);
            if args.json {
                report.results.push(TextOutput { text, found });
            } else {
                let number = batch * BATCH + index + 1;
                found.lines(number, text, args.top_k.max(1)).into_iter().try_for_each(output::line)?;
            }
        }
    }
    if args.json { output::json(&report) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_sorted_and_entities_have_their_place() {
        let labels = ["bad", "good", "dull"].map(str::to_owned);
        let scores = LabelScores { logits: Vec::new(), scores: vec![0.2, 0.7, 0.1] };
        let found = FoundOutput::new(Classification::Text(scores), &labels);
        assert_eq!(found.lines(1, "a boat", 2), ["0.7000\tgood\ta boat", "0.2000\tbad\ta boat"]);
        let entity =
            Entity {
                label: "PER".to_owned(), score: 0.98, text: "Zoé".to_owned(), bytes: 2..6, chars: 2..5
            };
        let found = FoundOutput::new(Classification::Entities(vec![entity]), &labels);
        assert_eq!(found.lines(3, "a Zoé", 1), ["3\t0.9800\tPER\t2..5\tZoé"]);
    }
}
