//! Results of the embeddings, in the form in which they are recorded.

use std::{collections::BTreeMap, fmt};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::{
    EmbeddingSide,
    texts::{BATCH, SINGLES},
};
use crate::spread::Spread;

/// Comparisons that are left out, with their reasons.
const LEFT_OUT: [&str; 1] =
    ["sentence-transformers 6.2.0, because it needs PyTorch. For Linux on x86-64, PyTorch cannot be \
                             imported without the CUDA libraries: 45 packages, a download of 3.1 GB"];

/// Output of a side in one round.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct EmbeddingOutput {
    pub(super) batch_seconds: f64,
    /// Number of tokens of the batch, without padding.
    pub(super) batch_tokens: u64,
    /// Time of all single texts together.
    pub(super) single_seconds: f64,
    /// Vectors of the batch, then of the single texts.
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) versions: BTreeMap<String, String>,
}

/// Figures of a side in one round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EmbeddingFigures {
    tokens_per_second: f64,
    texts_per_second: f64,
    batch_tokens: u64,
    /// Minimum cosine of a vector to that of the reference, if that was measured.
    cosine: Option<f64>,
    versions: BTreeMap<String, String>,
}

impl EmbeddingOutput {
    /// Computes the figures of the output, and compares its tokens and vectors with those of a reference.
    pub(super) fn figures(&self, reference: Option<&Self>) -> anyhow::Result<EmbeddingFigures> {
        let (batch, single) = (self.batch_seconds, self.single_seconds);
        ensure!(batch > 0.0 && single > 0.0, "expected times, found {batch} s and {single} s");
        ensure!(
            self.vectors.len() == BATCH + SINGLES,
            "expected {} vectors, found {}",
            BATCH + SINGLES,
            self.vectors.len()
        );
        if let Some(reference) = reference {
            ensure!(
                self.batch_tokens == reference.batch_tokens,
                "expected {} tokens, found {}",
                reference.batch_tokens,
                self.batch_tokens
            );
        }
        let cosine =
            reference.map(|reference| least_cosine(&self.vectors, &reference.vectors)).transpose()?;
        Ok(EmbeddingFigures {
            tokens_per_second: self.batch_tokens as f64 / batch,
            texts_per_second: SINGLES as f64 / single,
            batch_tokens: self.batch_tokens,
            cosine,
            versions: self.versions.clone(),
        })
    }
}

impl fmt::Display for EmbeddingFigures {
    /// Formats the speeds, and the cosine if it is known.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tokens_per_second, texts_per_second, cosine, .. } = self;
        write!(formatter, "{tokens_per_second:8.1} tokens/s {texts_per_second:7.1} single texts/s")?;
        cosine.map_or(Ok(()), |cosine| write!(formatter, ", cosine {cosine:.5}"))
    }
}

/// Returns the minimum cosine of two vectors at the same position.
fn least_cosine(found: &[Vec<f32>], reference: &[Vec<f32>]) -> anyhow::Result<f64> {
    ensure!(
        found.iter().map(Vec::len).eq(reference.iter().map(Vec::len)),
        "the vectors differ in number or length from those of the reference"
    );
    let product =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    let pairs = found.iter().zip(reference);
    let cosines = pairs.map(|(a, b)| product(a, b) / (product(a, a) * product(b, b)).sqrt());
    let least =
        cosines.reduce(|least, cosine| if cosine < least || cosine.is_nan() { cosine } else { least });
    least.filter(|least| !least.is_nan()).context("the vectors have no cosine")
}

/// Figures of a side in every round, or the reason why it could not be measured.
pub(super) struct EmbeddingRun {
    pub(super) side: EmbeddingSide,
    pub(super) rounds: anyhow::Result<Vec<EmbeddingFigures>>,
}

/// All measurements of embeddings.
#[derive(Debug, Serialize)]
pub(crate) struct Embeddings {
    pub(crate) model: &'static str,
    pub(crate) batch_texts: usize,
    /// Number of tokens of a batch without padding.
    pub(crate) batch_tokens: Option<Spread>,
    pub(crate) single_texts: usize,
    pub(crate) sides: Vec<EmbeddingResult>,
    pub(crate) ratios: Vec<EmbeddingRatio>,
    pub(crate) left_out: [&'static str; 1],
}

/// Speeds and accuracy of one side.
#[derive(Debug, Serialize)]
pub(crate) struct EmbeddingResult {
    pub(crate) side: &'static str,
    pub(crate) about: &'static str,
    pub(crate) versions: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speed: Option<EmbeddingSpeed>,
    /// Minimum cosine of a vector to that of the reference, over all texts of all rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cosine: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
}

/// Speeds of one side.
#[derive(Debug, Serialize)]
pub(crate) struct EmbeddingSpeed {
    /// Tokens per second of a batch, without padding.
    pub(crate) batch: Spread,
    /// Texts per second, one by one.
    pub(crate) single: Spread,
}

/// Speed of Narthex divided by that of a peer, round by round.
#[derive(Debug, Serialize)]
pub(crate) struct EmbeddingRatio {
    pub(crate) of: &'static str,
    pub(crate) to: &'static str,
    pub(crate) batch: Spread,
    pub(crate) single: Spread,
}

impl Embeddings {
    /// Summarises the measurements.
    pub(super) fn new(model: &'static str, runs: Vec<EmbeddingRun>) -> Self {
        let measured =
            runs.iter().filter_map(|run| run.rounds.as_ref().ok()).find(|rounds| !rounds.is_empty());
        let batch_tokens = measured
            .and_then(|rounds| Spread::of(rounds.iter().map(|round| round.batch_tokens as f64).collect()));
        let sides: Vec<EmbeddingResult> = runs.into_iter().map(EmbeddingRun::into_result).collect();
        let of = EmbeddingSide::NarthexW8.name();
        let ours = sides.iter().find(|result| result.side == of).and_then(|result| result.speed.as_ref());
        let ratio = |theirs: &EmbeddingResult| {
            let (ours, speed) = ours.zip(theirs.speed.as_ref())?;
            let (batch, single) = (ours.batch.over(&speed.batch)?, ours.single.over(&speed.single)?);
            Some(EmbeddingRatio { of, to: theirs.side, batch, single })
        };
        let ratios = sides.iter().filter(|result| result.side != of).filter_map(ratio).collect();
        let (batch_texts, single_texts) = (BATCH, SINGLES);
        Self { model, batch_texts, batch_tokens, single_texts, sides, ratios, left_out: LEFT_OUT }
    }

    /// Returns the ratio to the fastest peer by one of the speeds, which is the smallest.
    pub(crate) fn over_best(&self, speed: fn(&EmbeddingRatio) -> &Spread) -> Option<&EmbeddingRatio> {
        self.ratios.iter().min_by(|a, b| speed(a).median.total_cmp(&speed(b).median))
    }
}

impl EmbeddingRun {
    fn into_result(self) -> EmbeddingResult {
        let (rounds, failed) = match self.rounds {
            Ok(rounds) => (rounds, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        let spread = |figure: fn(&EmbeddingFigures) -> f64| Spread::of(rounds.iter().map(figure).collect());
        let speeds = spread(|round| round.tokens_per_second).zip(spread(|round| round.texts_per_second));
        EmbeddingResult {
            side: self.side.name(),
            about: self.side.about(),
            versions: rounds.first().map(|round| round.versions.clone()).unwrap_or_default(),
            speed: speeds.map(|(batch, single)| EmbeddingSpeed { batch, single }),
            cosine: rounds.iter().filter_map(|round| round.cosine).reduce(f64::min),
            failed,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use anyhow::anyhow;

    use super::*;

    fn output(batch_seconds: f64, element: f32) -> EmbeddingOutput {
        let vectors = vec![vec![1.0, element]; BATCH + SINGLES];
        let versions = [("runtime".to_owned(), "1.2".to_owned())].into();
        EmbeddingOutput { batch_seconds, batch_tokens: 9000, single_seconds: 0.5, vectors, versions }
    }

    /// Returns two rounds of three sides, and a side that failed.
    pub(crate) fn embeddings() -> Embeddings {
        let reference = output(3.0, 0.0);
        let run = |side, seconds: [f64; 2], element| {
            let rounds = seconds.map(|seconds| output(seconds, element).figures(Some(&reference)).unwrap());
            EmbeddingRun { side, rounds: Ok(rounds.to_vec()) }
        };
        let runs = vec![
            run(EmbeddingSide::NarthexW8, [1.0, 2.0], 0.01),
            run(EmbeddingSide::OnnxRuntime, [3.0, 6.0], 0.0),
            run(EmbeddingSide::OpenVino, [1.2, 2.4], 0.1),
            EmbeddingRun { side: EmbeddingSide::OpenVinoF32, rounds: Err(anyhow!("no wheel")) },
        ];
        Embeddings::new("tiny", runs)
    }

    #[test]
    fn the_best_peer_has_the_smallest_ratio() {
        let found = embeddings();
        assert_eq!(found.ratios.len(), 2);
        assert_eq!(found.batch_tokens.as_ref().unwrap().median, 9000.0);
        let best = found.over_best(|ratio| &ratio.batch).unwrap();
        assert_eq!((best.of, best.to), ("narthex-w8", "openvino"));
        // The machine is half as fast in the second round, which does not change the ratio.
        assert!(best.batch.rounds.iter().all(|ratio| (ratio - 1.2).abs() < 1e-9), "{best:?}");
        assert_eq!(best.single.rounds, [1.0, 1.0]);
        assert_eq!(found.sides[0].speed.as_ref().unwrap().batch.rounds, [9000.0, 4500.0]);
        assert_eq!(found.sides[0].speed.as_ref().unwrap().single.median, 64.0);
        assert_eq!(found.sides[3].failed.as_deref(), Some("no wheel"));
        assert!(found.sides[3].speed.is_none());
    }

    #[test]
    fn outputs_are_compared_with_the_reference() {
        let reference = output(1.0, 0.0);
        let check = |found: &EmbeddingOutput, expect: Result<f64, &str>| match (
            found.figures(Some(&reference)),
            expect,
        ) {
            (Ok(figures), Ok(expect)) => assert!((figures.cosine.unwrap() - expect).abs() < 1e-9),
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (found, expect) => panic!("{found:?} instead of {expect:?}"),
        };
        check(&output(1.0, 0.0), Ok(1.0));
        let mut one_differs = output(1.0, 0.0);
        one_differs.vectors[7] = vec![3.0, 4.0];
        check(&one_differs, Ok(0.6));
        check(&EmbeddingOutput { batch_tokens: 8999, ..output(1.0, 0.0) }, Err("expected 9000 tokens"));
        check(&EmbeddingOutput { vectors: Vec::new(), ..output(1.0, 0.0) }, Err("expected 288 vectors"));
        check(&output(0.0, 0.0), Err("expected times"));
        one_differs.vectors[7] = vec![1.0];
        check(&one_differs, Err("differ in number or length"));
        one_differs.vectors[7] = vec![0.0, 0.0];
        check(&one_differs, Err("no cosine"));
        assert_eq!(output(1.0, 0.0).figures(None).unwrap().cosine, None);
    }
}
