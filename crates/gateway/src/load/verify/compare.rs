//! Distance of a device's results from the CPU's, and its bounds.

use narthex_engine::executor::FORBIDDEN_LOGIT;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// Maximum mean Kullback-Leibler divergence of distributions, in nats. With half precision on another device, the
/// divergence is about a tenth of this. With a wrong layout or scale, it is far higher.
const MEAN_DIVERGENCE: f64 = 0.02;

/// Minimum difference of the CPU's two best logits for the best token to be compared. Closer logits may round either
/// way.
const MARGIN: f32 = 0.5;

/// Minimum cosine of an embedding to the CPU's.
const COSINE: f64 = 0.999;

/// Result after one token of one text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Index of the reference text.
    pub(crate) text: usize,
    /// Number of tokens fed before.
    pub(crate) at: usize,
    /// Divergence of the device's distribution from the CPU's, in nats; `None` if it is not finite.
    pub(crate) divergence: Option<f64>,
    /// Difference of the CPU's two best logits, which is finite; 0 if the logits are not.
    #[serde(deserialize_with = "finite")]
    pub(crate) margin: f32,
    /// Equality of the best tokens.
    pub(crate) agrees: bool,
}

/// Similarity of an encoder's output to the CPU's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TextSimilarity {
    /// Index of the reference text.
    pub(crate) text: usize,
    /// Length in tokens.
    pub(crate) tokens: usize,
    /// Cosine; `None` if it is not finite.
    pub(crate) cosine: Option<f64>,
}

fn finite<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    let value = f32::deserialize(from)?;
    if value.is_finite() { Ok(value) } else { Err(D::Error::custom("expected a number in the range of f32")) }
}

impl Position {
    pub(crate) fn new(text: usize, at: usize, expected: &[f32], found: &[f32]) -> Self {
        let top = best(expected);
        let second = expected.iter().enumerate().filter(|(index, _)| *index != top).map(|(_, x)| *x);
        let margin = expected.get(top).copied().unwrap_or(0.0) - second.fold(f32::NEG_INFINITY, f32::max);
        // JSON has no other numbers, and a record with one could not be read.
        let margin = if margin.is_nan() { 0.0 } else { margin.clamp(f32::MIN, f32::MAX) };
        Self { text, at, divergence: divergence(expected, found), margin, agrees: best(found) == top }
    }
}

/// Returns the index of the largest value, or 0 for an empty row.
pub(crate) fn best(row: &[f32]) -> usize {
    row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(index, _)| index)
}

/// Difference between one distribution of a reduced model and the whole model's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReductionLoss {
    /// Share of the whole model's probability on tokens that the reduced model keeps.
    pub(crate) mass: f64,
    /// Divergence of the reduced model's distribution from the whole model's over the kept tokens, in nats.
    pub(crate) divergence: f64,
    /// Equality of the best tokens.
    pub(crate) agrees: bool,
    /// Tokens that the reduced model keeps.
    pub(crate) vocabulary: KeptVocabulary,
}

/// Tokens that a reduced model keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptVocabulary {
    All,
    Subset,
}

impl ReductionLoss {
    /// Compares two rows of logits. Returns `None` if they are not finite, or no token is kept.
    pub(crate) fn new(whole: &[f32], reduced: &[f32]) -> Option<Self> {
        let kept = whole.iter().zip(reduced).filter(|(_, logit)| **logit != FORBIDDEN_LOGIT);
        let (expected, found): (Vec<f32>, Vec<f32>) = kept.unzip();
        if found.is_empty() {
            return None;
        }
        let mass = (log_sum_exp(&expected) - log_sum_exp(whole)).exp();
        let divergence = divergence(&expected, &found).filter(|_| mass.is_finite())?;
        let vocabulary =
            if found.len() == reduced.len() { KeptVocabulary::All } else { KeptVocabulary::Subset };
        Some(Self { mass, divergence, agrees: best(whole) == best(reduced), vocabulary })
    }
}

/// Returns the logarithm of the sum of a row's exponentials.
pub(crate) fn log_sum_exp(row: &[f32]) -> f64 {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
    f64::from(most) + sum.ln()
}

/// Returns `KL(expected ‖ found)` of two rows of logits.
fn divergence(expected: &[f32], found: &[f32]) -> Option<f64> {
    let p = log_sum_exp(expected);
    let q = log_sum_exp(found);
    let sum: f64 = expected
        .iter()
        .zip(found)
        .map(|(a, b)| {
            let log = f64::from(*a) - p;
            log.exp() * (log - (f64::from(*b) - q))
        })
        .sum();
    (sum.is_finite() && found.iter().all(|x| x.is_finite())).then_some(sum)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

/// Returns the cosine of two vectors.
pub(crate) fn cosine(expected: &[f32], found: &[f32]) -> Option<f64> {
    let cosine = dot(expected, found) / (dot(expected, expected) * dot(found, found)).sqrt();
    cosine.is_finite().then_some(cosine)
}

/// Returns a vector for the cosine. A single logit becomes the two probabilities of its class.
pub(crate) fn to_vector(values: Vec<f32>) -> Vec<f32> {
    match values[..] {
        [logit] => {
            let probability = 1.0 / (1.0 + (-logit).exp());
            vec![probability, 1.0 - probability]
        }
        _ => values,
    }
}

/// Returns the reason to quarantine a decoder's device.
pub(crate) fn decoder_verdict(positions: &[Position]) -> Option<String> {
    let mut sum = 0.0;
    for position in positions {
        let Position { text, at, margin, .. } = *position;
        let Some(divergence) = position.divergence else {
            return Some(format!("logits after {at} tokens of text {text} are not finite"));
        };
        sum += divergence;
        if !position.agrees && margin > MARGIN {
            return Some(format!(
                "after {at} tokens of text {text} its best token differs from the CPU's, which leads by {margin:.2}"
            ));
        }
    }
    let mean = sum / positions.len().max(1) as f64;
    (mean > MEAN_DIVERGENCE).then(|| {
        format!(
            "its distributions differ from the CPU's by {mean:.4} nats on average, above {MEAN_DIVERGENCE}"
        )
    })
}

/// Returns the reason to quarantine an encoder's device.
pub(crate) fn encoder_verdict(texts: &[TextSimilarity]) -> Option<String> {
    texts.iter().find_map(|measure| match measure.cosine {
        None => Some(format!("the output for text {} is not finite", measure.text)),
        Some(cosine) if cosine < COSINE => Some(format!(
            "the output for text {} has a cosine of {cosine:.5} to the CPU's, below {COSINE}",
            measure.text
        )),
        Some(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_measured() {
        let row = [1.0f32, 3.0, 0.0];
        let same = Position::new(0, 4, &row, &[2.0, 4.0, 1.0]);
        assert!(same.agrees && same.divergence.unwrap().abs() < 1e-9 && same.margin == 2.0, "{same:?}");
        // Softmax of [0, ln 3] is [1/4, 3/4] and of [0, 0] is [1/2, 1/2], so the divergence is 1/4 ln(1/2) + 3/4
        // ln(3/2).
        let found = divergence(&[0.0, 3f32.ln()], &[0.0, 0.0]).unwrap();
        assert!((found - (0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln())).abs() < 1e-6, "{found}");
        assert_eq!(divergence(&row, &[1.0, f32::NAN, 0.0]), None);
        assert_eq!(divergence(&row, &[1.0, f32::INFINITY, 0.0]), None);
        assert_eq!(cosine(&[3.0, 4.0], &[6.0, 8.0]), Some(1.0));
        assert_eq!(cosine(&[3.0, 4.0], &[0.0, 0.0]), None);
        assert_eq!((to_vector(vec![0.0]), to_vector(vec![1.0, 2.0])), (vec![0.5, 0.5], vec![1.0, 2.0]));
        assert!(cosine(&to_vector(vec![1.0]), &to_vector(vec![1.5])).unwrap() < COSINE);
        assert_eq!(cosine(&to_vector(vec![f32::NAN]), &to_vector(vec![1.5])), None);
    }

    #[test]
    fn every_position_can_be_stored() {
        for row in [&[1.0][..], &[f32::INFINITY, 1.0], &[f32::NAN, f32::NAN], &[f32::MAX, f32::MIN]] {
            let position = Position::new(0, 0, row, row);
            let stored = serde_json::to_vec(&position).unwrap();
            assert_eq!(serde_json::from_slice::<Position>(&stored).unwrap(), position, "{row:?}");
        }
    }

    #[test]
    fn losses_are_measured_over_the_kept_tokens() {
        // The probabilities are 1/2, 1/4, 1/4.
        let whole = [2f32.ln(), 0.0, 0.0];
        let same = ReductionLoss::new(&whole, &whole).unwrap();
        assert!(
            same.agrees && same.vocabulary == KeptVocabulary::All && (same.mass - 1.0).abs() < 1e-9,
            "{same:?}"
        );
        let pruned = ReductionLoss::new(&whole, &[FORBIDDEN_LOGIT, 1.0, 1.0]).unwrap();
        assert!((pruned.mass - 0.5).abs() < 1e-6 && pruned.divergence.abs() < 1e-6, "{pruned:?}");
        assert!(!pruned.agrees && pruned.vocabulary == KeptVocabulary::Subset);
        // The first two tokens have 2/3 and 1/3 of the kept probability, and 1/2 each in the reduced model.
        let other = ReductionLoss::new(&whole, &[0.0, 0.0, FORBIDDEN_LOGIT]).unwrap();
        let expected = 2.0 / 3.0 * (4f64 / 3.0).ln() + 1.0 / 3.0 * (2f64 / 3.0).ln();
        assert!((other.mass - 0.75).abs() < 1e-6 && (other.divergence - expected).abs() < 1e-6, "{other:?}");
        assert_eq!(ReductionLoss::new(&whole, &[f32::NAN, 0.0, 0.0]), None);
        assert_eq!(ReductionLoss::new(&whole, &[FORBIDDEN_LOGIT; 3]), None);
    }

    #[test]
    fn verdicts_say_what_is_wrong() {
        let position = |divergence, margin, agrees| Position { text: 1, at: 5, divergence, margin, agrees };
        let check = |positions: &[Position], expected: Option<&str>| {
            let found = decoder_verdict(positions);
            assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
            assert!(found.clone().unwrap_or_default().contains(expected.unwrap_or_default()), "{found:?}");
        };
        let good = position(Some(0.001), 4.0, true);
        check(&[good.clone(), position(Some(0.002), 0.1, false)], None);
        check(&[good.clone(), position(Some(0.002), 0.6, false)], Some("differs from the CPU's"));
        check(&[good.clone(), position(None, 4.0, true)], Some("not finite"));
        check(&[good, position(Some(0.1), 4.0, true)], Some("nats on average"));
        let text = |cosine| [TextSimilarity { text: 2, tokens: 7, cosine }];
        assert_eq!(encoder_verdict(&text(Some(0.9995))), None);
        assert!(encoder_verdict(&text(Some(0.99))).unwrap().contains("0.99000"));
        assert!(encoder_verdict(&text(None)).unwrap().contains("not finite"));
    }
}
