//! Divergence of a decoder from a reference over one text: of a KV cache with fewer bits from one in single precision, of
//! a quantised model from its float model, and of a package from another.

use narthex_engine::executor::{Executor, LogitRows, StepPlan};
use narthex_spec::TokenId;

use narthex_text::tokenizer::Specials;

use super::{
    SLOT,
    compare::{best, log_sum_exp},
};
use crate::{cancel::Cancel, error::Error, library::package::Package, report::kv_cache::TextComparison};

/// Prose, code, dialogue and several languages, written for this purpose.
pub(crate) const TEXT: &str = include_str!("text.txt");

/// Maximum length of the text in tokens.
const MAX_TOKENS: usize = 2048;

/// Tokens of one step without logits, and of the following step with logits: the head, which takes much of the time of a
/// small model, computes a third of the rows.
const SKIPPED: usize = 32;
const COMPARED: usize = 16;

/// Number of tokens whose probabilities are compared one by one. The other tokens count as one token, which bounds the
/// memory of the reference. The divergence is at most that of the whole distributions.
const TOP: usize = 256;

/// Text with the distributions that a reference computed after some of its tokens.
pub(crate) struct ReferenceText {
    tokens: Vec<TokenId>,
    positions: Vec<ReferencePosition>,
}

/// Distribution after one token.
struct ReferencePosition {
    /// The most likely tokens with the logarithms of their probabilities, the most likely one first.
    top: Vec<(usize, f64)>,
    /// Logarithm of the probability of the text's next token.
    next: f64,
}

impl ReferenceText {
    /// Runs the reference over the first tokens of a text.
    pub(crate) fn new(
        reference: &mut dyn Executor,
        mut tokens: Vec<TokenId>,
        cancel: &Cancel,
    ) -> Result<Self, Error> {
        tokens.truncate(MAX_TOKENS.min(reference.limits().longest()));
        let mut positions = Vec::new();
        run(reference, &tokens, cancel, &mut |row, next| positions.push(ReferencePosition::new(row, next)))?;
        Ok(Self { tokens, positions })
    }

    /// Returns the tokens of a text for a package, after the token that begins a sequence.
    pub(crate) fn tokens(package: &Package, text: &str) -> Result<Vec<TokenId>, Error> {
        let mut tokens: Vec<TokenId> = package.manifest.bos().into_iter().collect();
        tokens.extend(package.read_tokenizer()?.encode(text, Specials::AsText)?);
        Ok(tokens)
    }

    /// Returns the perplexity of the reference, or `None` if a logit was not finite or the text is too short.
    pub(crate) fn perplexity(&self) -> Option<f64> {
        let loss: f64 = self.positions.iter().map(|position| -position.next).sum();
        let perplexity = (loss / self.positions.len() as f64).exp();
        perplexity.is_finite().then_some(perplexity)
    }

    /// Compares another executor with the reference.
    pub(crate) fn compare(&self, other: &mut dyn Executor, cancel: &Cancel) -> Result<TextComparison, Error> {
        let mut expected = self.positions.iter();
        let mut divergences = Vec::with_capacity(self.positions.len());
        let mut loss_change = 0.0;
        let mut agreeing = 0;

        run(other, &self.tokens, cancel, &mut |row, next| {
            let Some(position) = expected.next() else { return };
            divergences.push(position.divergence(row));
            loss_change += position.next - (f64::from(row[next]) - log_sum_exp(row));
            agreeing += usize::from(position.top.first().is_some_and(|&(token, _)| token == best(row)));
        })?;

        let count = divergences.len().max(1) as f64;
        let divergence = divergences.iter().copied().sum::<Option<f64>>().map(|sum| sum / count);
        let perplexity_change = (loss_change / count).exp() - 1.0;
        Ok(TextComparison {
            positions: divergences.len(),
            divergence,
            perplexity_change: Some(perplexity_change).filter(|change| change.is_finite()),
            agreeing,
        })
    }
}

impl ReferencePosition {
    fn new(row: &[f32], next: usize) -> Self {
        let total = log_sum_exp(row);
        let mut top: Vec<usize> = (0..row.len()).collect();
        let count = TOP.min(row.len());
        if count < row.len() {
            top.select_nth_unstable_by(count, |&a, &b| row[b].total_cmp(&row[a]));
        }
        top.truncate(count);
        top.sort_unstable_by(|&a, &b| row[b].total_cmp(&row[a]));
        let top = top.into_iter().map(|token| (token, f64::from(row[token]) - total)).collect();
        Self { top, next: f64::from(row[next]) - total }
    }

    /// Returns the divergence of a row of logits, or `None` if it is not finite.
    fn divergence(&self, row: &[f32]) -> Option<f64> {
        let total = log_sum_exp(row);
        let mut sum = 0.0;
        let mut expected_rest = 1.0;
        let mut rest = 1.0;
        for &(token, expected) in &self.top {
            let log = f64::from(row[token]) - total;
            sum += expected.exp() * (expected - log);
            expected_rest -= expected.exp();
            rest -= log.exp();
        }
        // Rounding leaves less than this of a distribution that the most likely tokens cover.
        let smallest = 1e-9;
        if expected_rest > smallest {
            sum += expected_rest * (expected_rest / rest.max(smallest)).ln();
        }
        let is_finite = sum.is_finite() && row.iter().all(|logit| logit.is_finite());
        is_finite.then_some(sum.max(0.0))
    }
}

/// Runs a text in steps, and passes the logits after some tokens with the next token to `take`. Empties the slot.
fn run(
    executor: &mut dyn Executor,
    tokens: &[TokenId],
    cancel: &Cancel,
    take: &mut dyn FnMut(&[f32], usize),
) -> Result<(), Error> {
    let chunk = executor.limits().chunk.max(1);
    let mut at = 0;
    while at + 1 < tokens.len() {
        for (length, logits) in [(SKIPPED, LogitRows::Nothing), (COMPARED, LogitRows::All)] {
            // The last token has no next one.
            let end = tokens.len().saturating_sub(1).min(at + length);
            while at < end {
                cancel.check()?;
                let part = &tokens[at..end.min(at + chunk)];
                let mut plan = StepPlan::default();
                plan.push(SLOT, at, part, logits);
                let rows = executor.step(&plan)?;
                if logits == LogitRows::All {
                    for (row, &next) in tokens[at + 1..].iter().enumerate().take(part.len()) {
                        take(rows.row(row), next as usize);
                    }
                }
                at += part.len();
            }
        }
    }

    executor.truncate(SLOT, 0)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use narthex_engine::executor::Limits;
    use narthex_testkit::executor::{FakeExecutor, KV};

    use super::*;

    fn executor(chunk: usize) -> FakeExecutor {
        FakeExecutor::new(Limits { slots: 1, context: 4096, chunk, batch: 1, vocab: 50, kv: KV })
    }

    #[test]
    fn the_same_executor_in_other_chunks_is_equal() {
        let tokens: Vec<TokenId> = (0..3000).map(|i| i * 7 % 50).collect();
        let reference = ReferenceText::new(&mut executor(64), tokens, &Cancel::new()).unwrap();
        let comparison = reference.compare(&mut executor(5), &Cancel::new()).unwrap();
        // 2,047 tokens have a next one, in 42 whole rounds of 48 and a rest of 31 without logits.
        assert_eq!((comparison.positions, comparison.agreeing), (42 * COMPARED, 42 * COMPARED));
        assert!(comparison.divergence.unwrap() < 1e-9, "{comparison:?}");
        assert!(comparison.perplexity_change.unwrap().abs() < 1e-9);
        assert_eq!(comparison.refusal(), None);
    }

    #[test]
    fn the_divergence_counts_unlikely_tokens_together() {
        let row: Vec<f32> = (0..1000).map(|token| -(token as f32) / 100.0).collect();
        let position = ReferencePosition::new(&row, 3);
        assert_eq!((position.top.len(), position.top[0].0), (TOP, 0));
        assert!(position.divergence(&row).unwrap() < 1e-9);

        // Twice the odds of the tokens that are not among the first move the mass of all of them together.
        let other: Vec<f32> =
            row.iter().enumerate().map(|(token, x)| x + if token < TOP { 0.0 } else { 2_f32.ln() }).collect();
        let rest: f64 = 1.0 - position.top.iter().map(|(_, log)| log.exp()).sum::<f64>();
        let scale = (1.0 + rest).ln();
        let expected = (1.0 - rest) * scale + rest * (scale - 2_f64.ln());
        assert!((position.divergence(&other).unwrap() - expected).abs() < 1e-6);
        assert_eq!(position.divergence(&[f32::NAN; 1000]), None);
    }
}
