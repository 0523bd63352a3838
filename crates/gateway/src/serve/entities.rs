//! Entities of a text from the scores of its tokens, with the rules of transformers' pipeline (`TokenClassificationPipeline`,
//! aggregation strategies none and simple).

use std::ops::Range;

use narthex_text::tokenizer::Pair;

use crate::serve::{
    probabilities::{first_largest, softmax},
    request::{Aggregation, Entity},
};

/// Label of tokens outside of entities.
const OUTSIDE: &str = "O";

/// A token, or consecutive ones, with the label of the first.
struct LabelledSpan<'a> {
    label: &'a str,
    bytes: Range<usize>,
    /// Sum of the tokens' scores.
    score: f32,
    tokens: usize,
}

/// Returns the entities in `text`, whose tokens are those of `pair` and have a row of scores each.
pub(super) fn entities(
    text: &str,
    pair: &Pair,
    rows: &[f32],
    labels: &[String],
    aggregation: Aggregation,
) -> Vec<Entity> {
    let mut spans: Vec<LabelledSpan<'_>> = Vec::new();
    let rows = rows.chunks_exact(labels.len().max(1)).skip(pair.second.start);
    for (bytes, row) in pair.bytes.iter().zip(rows) {
        let Some(token) = labelled(bytes.clone(), row, labels) else { continue };
        match spans.last_mut() {
            Some(last) if aggregation == Aggregation::Simple && continues(token.label, last.label) => {
                // The span keeps the label of its first token.
                last.bytes.end = token.bytes.end;
                last.score += token.score;
                last.tokens += 1;
            }
            _ => spans.push(token),
        }
    }

    let mut cursor = Cursor { text, byte: 0, chars: 0 };
    let named = spans.into_iter().map(|span| LabelledSpan { label: shown(span.label, aggregation), ..span });
    named.filter(|span| span.label != OUTSIDE).map(|span| cursor.entity(&span)).collect()
}

/// Returns a token with its likeliest label; of equal ones, the first.
fn labelled<'a>(bytes: Range<usize>, row: &[f32], labels: &'a [String]) -> Option<LabelledSpan<'a>> {
    let best = first_largest(row);
    let score = softmax(row)(*row.get(best)?) as f32;
    Some(LabelledSpan { label: labels.get(best)?, bytes, score, tokens: 1 })
}

/// Returns whether a label continues the entity of the label before it.
fn continues(label: &str, before: &str) -> bool {
    let tag = |label| str::strip_prefix(label, "B-").or_else(|| label.strip_prefix("I-")).unwrap_or(label);
    !label.starts_with("B-") && tag(label) == tag(before)
}

/// Returns the name of a label in an answer.
fn shown(label: &str, aggregation: Aggregation) -> &str {
    match aggregation {
        Aggregation::None => label,
        Aggregation::Simple => label.split_once('-').map_or(label, |(_, rest)| rest),
    }
}

/// Position up to which the characters of a text are counted.
struct Cursor<'a> {
    text: &'a str,
    byte: usize,
    chars: usize,
}

impl Cursor<'_> {
    /// Returns the entity of a span, which starts at the cursor or after it. Tokens that are a part of a character become
    /// the whole character.
    fn entity(&mut self, span: &LabelledSpan<'_>) -> Entity {
        let start = self.text.floor_char_boundary(span.bytes.start).max(self.byte);
        let end = self.text.ceil_char_boundary(span.bytes.end).max(start);
        self.chars += self.text[self.byte..start].chars().count();
        self.byte = start;
        let text = self.text[start..end].to_owned();
        let chars = self.chars..self.chars + text.chars().count();
        let score = span.score / span.tokens as f32;
        Entity { label: span.label.to_owned(), score, text, bytes: start..end, chars }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(
        text: &str,
        tokens: &[(Range<usize>, usize)],
        aggregation: Aggregation,
    ) -> Vec<(String, String)> {
        let labels = ["O", "B-PER", "I-PER", "B-LOC", "MISC", "X-Y"].map(str::to_owned);
        let row = |label: usize| (0..labels.len()).map(move |index| if index == label { 2.0 } else { 0.0 });
        // A special token on either side, whose scores do not count.
        let around = [(0..0, 1)];
        let rows: Vec<f32> =
            around.iter().chain(tokens).chain(&around).flat_map(|(_, label)| row(*label)).collect();
        let bytes: Vec<Range<usize>> = tokens.iter().map(|(bytes, _)| bytes.clone()).collect();
        let pair = Pair { tokens: vec![0; tokens.len() + 2], segment: 0, second: 1..tokens.len() + 1, bytes };
        let entities = entities(text, &pair, &rows, &labels, aggregation);
        for entity in &entities {
            assert_eq!(text[entity.bytes.clone()], entity.text);
            assert_eq!(
                text.chars().skip(entity.chars.start).take(entity.chars.len()).collect::<String>(),
                entity.text
            );
            assert!((entity.score - 2f32.exp() / (2f32.exp() + 5.0)).abs() < 1e-6);
        }
        entities.into_iter().map(|entity| (entity.label, entity.text)).collect()
    }

    #[test]
    fn tokens_of_one_label_are_one_entity() {
        let check = |tokens: &[(Range<usize>, usize)], aggregation, expect: &[(&str, &str)]| {
            let found = found("Zoé née Bo", tokens, aggregation);
            let found: Vec<(&str, &str)> = found.iter().map(|(label, text)| (&**label, &**text)).collect();
            assert_eq!(found, expect);
        };
        let names = [(0..2, 1), (2..4, 2), (5..9, 0), (10..12, 1)];
        check(&names, Aggregation::Simple, &[("PER", "Zoé"), ("PER", "Bo")]);
        check(&names, Aggregation::None, &[("B-PER", "Zo"), ("I-PER", "é"), ("B-PER", "Bo")]);
        // An entity may begin without a prefix, and ends at the next beginning.
        check(
            &[(0..4, 2), (5..9, 1), (10..12, 2)],
            Aggregation::Simple,
            &[("PER", "Zoé"), ("PER", "née Bo")],
        );
        check(&[(0..4, 3), (5..9, 2)], Aggregation::Simple, &[("LOC", "Zoé"), ("PER", "née")]);
        check(&[(0..4, 4), (5..9, 4), (10..12, 5)], Aggregation::Simple, &[("MISC", "Zoé née"), ("Y", "Bo")]);
        check(&[(0..4, 0)], Aggregation::Simple, &[]);
        // Tokens that are parts of one character.
        check(&[(2..3, 1), (3..4, 1)], Aggregation::None, &[("B-PER", "é"), ("B-PER", "é")]);
        check(&[], Aggregation::Simple, &[]);
    }
}
