//! Cost of a package's passes or of its reduction: the package and its counterpart without them read the reference
//! texts. Both run on the CPU, so that nothing else differs.

use std::path::Path;

use narthex_engine::executor::{Executor, LogitRows, StepPlan};
use narthex_spec::{
    ProgressSink, TokenId, Variant,
    manifest::Quality,
    progress::{Stage, Unit},
};

use crate::{
    cancel::Cancel,
    error::Error,
    library::{Library, package::Package, package_key::PackageKey},
    load::{
        runtime_choice::cpu_runtime,
        sessions::Model,
        verify::{
            SLOT,
            compare::{
                KeptVocabulary, Position, ReductionLoss, TextSimilarity, decoder_verdict, encoder_verdict,
            },
            compare_decoders, compare_encoders,
            package_comparison::ComparisonContext,
            reference_texts,
        },
    },
};

/// Tokens in one step, which bounds the logits in memory.
const CHUNK: usize = 16;

/// A package and its counterpart, each in a folder.
pub(super) struct ComparedPackage<'a> {
    pub(super) library: &'a Library,
    pub(super) key: &'a PackageKey,
    /// Folder of the package with passes or a reduction.
    pub(super) changed: &'a Path,
    /// Folder of the package without them.
    pub(super) plain: &'a Path,
    pub(super) progress: &'a dyn ProgressSink,
    pub(super) cancel: &'a Cancel,
}

/// Measures the cost of passes.
///
/// # Errors
/// [`Error::Invalid`] if the answers differ by more than rounding explains, and errors that prevented the measurement.
pub(super) fn measure_passes(packages: &ComparedPackage<'_>) -> Result<Quality, Error> {
    let title = "Comparing with the model without its passes";
    let _stage = Stage::start(packages.progress, title, Unit::Nothing, None);
    let ModelPair { changed, plain, texts } = packages.open(Variant::Static)?;
    match (changed, plain) {
        (Model::Decoder(mut changed), Model::Decoder(mut plain)) => {
            decoder_quality(&compare_decoders(&mut changed, &mut plain, &texts, &|| (), packages.cancel)?)
        }
        (Model::Encoder(mut changed), Model::Encoder(mut plain)) => {
            encoder_quality(&compare_encoders(&mut changed, &mut plain, &texts, &|| (), packages.cancel)?)
        }
        _ => Err(bad_passes("the kind of the model changed")),
    }
}

/// Measures the loss of a reduction. Any finite loss is accepted, because the user requested the reduction.
///
/// # Errors
/// [`Error::Invalid`] for a model whose output is not finite, and errors that prevented the measurement.
pub(super) fn measure_reduction(packages: &ComparedPackage<'_>) -> Result<Quality, Error> {
    let _stage = Stage::start(packages.progress, "Comparing with the whole model", Unit::Nothing, None);
    let ModelPair { changed, plain, texts } = packages.open(Variant::Dynamic)?;
    match (changed, plain) {
        (Model::Decoder(mut reduced), Model::Decoder(mut whole)) => {
            let losses = reduction_losses(&mut reduced, &mut whole, &texts, packages.cancel)?;
            mean_loss(&losses).ok_or_else(|| bad_reduction("its logits are not finite"))
        }
        (Model::Encoder(mut reduced), Model::Encoder(mut whole)) => {
            let texts = compare_encoders(&mut reduced, &mut whole, &texts, &|| (), packages.cancel)?;
            min_cosine(&texts).ok_or_else(|| bad_reduction("its output is not finite"))
        }
        _ => Err(bad_reduction("the kind of the model changed")),
    }
}

/// Both models, and the texts that they read.
struct ModelPair {
    changed: Model,
    plain: Model,
    texts: Vec<Vec<TokenId>>,
}

impl ComparedPackage<'_> {
    fn open(&self, variant: Variant) -> Result<ModelPair, Error> {
        let Self { library, key, changed, plain, progress, cancel } = *self;
        let runtime = cpu_runtime(library, progress, cancel)?;
        let context = ComparisonContext { library, runtime, progress, cancel };
        let plain = Package::open(key, plain)?;
        let texts = reference_texts(&plain)?;
        let changed = context.open(Package::open(key, changed)?, variant)?;
        Ok(ModelPair { changed, plain: context.open(plain, variant)?, texts })
    }
}

/// Reads every text with both models, and compares them after each token.
fn reduction_losses(
    reduced: &mut dyn Executor,
    whole: &mut dyn Executor,
    texts: &[Vec<TokenId>],
    cancel: &Cancel,
) -> Result<Vec<Option<ReductionLoss>>, Error> {
    let mut losses = Vec::new();
    let [chunk, longest] = [
        CHUNK.min(reduced.limits().chunk).min(whole.limits().chunk).max(1),
        reduced.limits().longest().min(whole.limits().longest()),
    ];

    for tokens in texts {
        let mut at = 0;
        for part in tokens[..tokens.len().min(longest)].chunks(chunk) {
            cancel.check()?;
            let mut plan = StepPlan::default();
            plan.push(SLOT, at, part, LogitRows::All);
            let expected = whole.step(&plan)?;
            let found = reduced.step(&plan)?;
            losses.extend((0..part.len()).map(|row| ReductionLoss::new(expected.row(row), found.row(row))));
            at += part.len();
        }
        reduced.truncate(SLOT, 0)?;
        whole.truncate(SLOT, 0)?;
    }
    Ok(losses)
}

/// Returns the mean loss; `None` if a model's output was not finite.
fn mean_loss(losses: &[Option<ReductionLoss>]) -> Option<Quality> {
    let all: Vec<&ReductionLoss> = losses.iter().map(Option::as_ref).collect::<Option<_>>()?;
    let count = all.len().max(1) as f64;
    let is_pruned = all.iter().any(|loss| loss.vocabulary == KeptVocabulary::Subset);
    Some(Quality::Decoder {
        positions: all.len(),
        divergence: all.iter().map(|loss| loss.divergence).sum::<f64>() / count,
        agreement: all.iter().filter(|loss| loss.agrees).count() as f64 / count,
        mass: is_pruned.then(|| all.iter().map(|loss| loss.mass).sum::<f64>() / count),
    })
}

/// Returns the smallest cosine; `None` if a model's output was not finite.
fn min_cosine(texts: &[TextSimilarity]) -> Option<Quality> {
    let cosines: Vec<f64> = texts.iter().map(|text| text.cosine).collect::<Option<_>>()?;
    Some(Quality::Encoder { texts: texts.len(), cosine: cosines.into_iter().fold(1.0, f64::min) })
}

fn bad_reduction(reason: &str) -> Error {
    let message = format!("the reduced model is not usable: {reason}; leave out less of it");
    Error::Invalid { param: "drop_layers", message }
}

fn decoder_quality(positions: &[Position]) -> Result<Quality, Error> {
    if let Some(reason) = decoder_verdict(positions) {
        return Err(bad_passes(&reason));
    }
    let count = positions.len().max(1) as f64;
    Ok(Quality::Decoder {
        positions: positions.len(),
        divergence: positions.iter().filter_map(|position| position.divergence).sum::<f64>() / count,
        agreement: positions.iter().filter(|position| position.agrees).count() as f64 / count,
        mass: None,
    })
}

fn encoder_quality(texts: &[TextSimilarity]) -> Result<Quality, Error> {
    if let Some(reason) = encoder_verdict(texts) {
        return Err(bad_passes(&reason));
    }
    min_cosine(texts).ok_or_else(|| bad_passes("its output is not finite"))
}

fn bad_passes(reason: &str) -> Error {
    let message = format!(
        "the passes changed the model's answers: {reason}; compile without passes, and report this as a bug"
    );
    Error::invalid("passes", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_means_and_the_least() {
        let position = |divergence, agrees| Position {
            text: 0,
            at: 1,
            divergence: Some(divergence),
            margin: 0.1,
            agrees,
        };
        let found = decoder_quality(&[position(0.001, true), position(0.003, false)]).unwrap();
        assert_eq!(found, Quality::Decoder { positions: 2, divergence: 0.002, agreement: 0.5, mass: None });
        let text = |cosine| TextSimilarity { text: 0, tokens: 3, cosine: Some(cosine) };
        let found = encoder_quality(&[text(0.9995), text(1.0)]).unwrap();
        assert_eq!(found, Quality::Encoder { texts: 2, cosine: 0.9995 });
        let error = decoder_quality(&[position(0.5, true)]).unwrap_err().to_string();
        assert!(error.contains("nats on average") && error.contains("compile without"), "{error}");
        assert!(encoder_quality(&[text(0.9)]).is_err());
    }

    #[test]
    fn any_finite_loss_is_stated() {
        let loss = |mass, divergence, agrees, vocabulary| {
            Some(ReductionLoss { mass, divergence, agrees, vocabulary })
        };
        let all = [loss(1.0, 3.0, false, KeptVocabulary::All), loss(1.0, 1.0, true, KeptVocabulary::All)];
        let expect = |mass| Quality::Decoder { positions: 2, divergence: 2.0, agreement: 0.5, mass };
        assert_eq!(mean_loss(&all), Some(expect(None)));
        let some =
            [loss(0.9, 3.0, false, KeptVocabulary::Subset), loss(0.7, 1.0, true, KeptVocabulary::Subset)];
        let Some(Quality::Decoder { mass: Some(mass), .. }) = mean_loss(&some) else { panic!("no mass") };
        assert!((mass - 0.8).abs() < 1e-12);
        assert_eq!(mean_loss(&[all[0].clone(), None]), None);
        let text = |cosine| TextSimilarity { text: 0, tokens: 3, cosine };
        let found = min_cosine(&[text(Some(0.2)), text(Some(0.9))]);
        assert_eq!(found, Some(Quality::Encoder { texts: 2, cosine: 0.2 }));
        assert_eq!(min_cosine(&[text(None)]), None);
    }
}
