//! What a model's passes cost, and its reduction: it reads the golden texts beside its twin, which was compiled without
//! them. Both run on the CPU, so that nothing else differs.

use std::path::Path;

use narthex_device::{ep::Device, fixed::Form, runtime::Runtime};
use narthex_engine::executor::{Executor, StepPlan, Wanted};
use narthex_spec::{
    ProgressSink, TokenId, Variant,
    manifest::{Manifest, Quality},
    progress::{Stage, Unit},
};
use narthex_text::tokenizer::Tokenizer;

use super::{
    SLOT,
    compare::{Given, Loss, Position, TextMeasure, decoder_verdict, encoder_verdict},
    decoder, encoder, golden,
};
use crate::{
    cancel::Cancel,
    config::Config,
    error::Error,
    gateway::Inner,
    library::package,
    load::sessions::{Model, Opened, Opening},
};

/// A package in a folder.
pub(crate) type Package<'a> = (&'a Path, &'a Manifest);

/// Measures a package beside its twin.
///
/// # Errors
/// [`Error::Invalid`] where the answers differ by more than a device's arithmetic explains; whatever else kept the
/// packages from being run.
pub(crate) fn measure(
    inner: &Inner,
    changed: Package<'_>,
    plain: Package<'_>,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<Quality, Error> {
    let runtime = inner.runtime(progress, cancel)?;
    let _stage = Stage::start(progress, "Comparing with the model without its passes", Unit::Nothing, None);
    let pair = Pair::open(inner, runtime, (changed, plain), Variant::Static, (progress, cancel))?;
    let Pair { changed, plain, texts } = pair;
    let wanted = || cancel.check();
    match (changed, plain) {
        (Model::Decoder(mut changed), Model::Decoder(mut plain)) => {
            of_decoder(&decoder(&mut changed, &mut plain, &texts, &wanted)?)
        }
        (Model::Encoder(mut changed), Model::Encoder(mut plain)) => {
            of_encoder(&encoder(&mut changed, &mut plain, &texts, &wanted)?)
        }
        _ => Err(refused("it has become another kind of model")),
    }
}

/// Measures a reduced package beside that of the whole model. However much it costs, it is what was asked for.
///
/// # Errors
/// [`Error::Invalid`] for a model that gives nonsense; whatever else kept the packages from being run.
pub(crate) fn loss(
    inner: &Inner,
    reduced: Package<'_>,
    whole: Package<'_>,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<Quality, Error> {
    let runtime = inner.runtime(progress, cancel)?;
    let _stage = Stage::start(progress, "Comparing with the whole model", Unit::Nothing, None);
    let pair = Pair::open(inner, runtime, (reduced, whole), Variant::Dynamic, (progress, cancel))?;
    let Pair { changed, plain, texts } = pair;
    let wanted = || cancel.check();
    match (changed, plain) {
        (Model::Decoder(mut reduced), Model::Decoder(mut whole)) => {
            let nonsense = || broken("it gives logits that are not finite");
            lost(&losses(&mut reduced, &mut whole, &texts, &wanted)?).ok_or_else(nonsense)
        }
        (Model::Encoder(mut reduced), Model::Encoder(mut whole)) => {
            let found = encoder(&mut reduced, &mut whole, &texts, &wanted)?;
            least_cosine(&found).ok_or_else(|| broken("it gives numbers that are not finite"))
        }
        _ => Err(broken("it has become another kind of model")),
    }
}

/// Both models, and what they read.
struct Pair {
    changed: Model,
    plain: Model,
    texts: Vec<Vec<TokenId>>,
}

impl Pair {
    fn open(
        inner: &Inner,
        runtime: &'static Runtime,
        (changed, plain): (Package<'_>, Package<'_>),
        variant: Variant,
        (progress, cancel): (&dyn ProgressSink, &Cancel),
    ) -> Result<Self, Error> {
        let config = Config { slots: 1, ..inner.config.clone() };
        let tokenizer = Tokenizer::from_json(&package::read(plain.0, &plain.1.tokenizer.file)?)?;
        let opening = |(folder, manifest)| Opening {
            folder,
            manifest,
            runtime,
            config: &config,
            tokenizer: &tokenizer,
            store: &inner.store,
            head: None,
            progress,
            cancel,
        };
        let texts = golden(&opening(plain))?;
        let open = |package| opening(package).open(&Device::Cpu, variant, Form::Graph);
        let (Opened { model: changed, .. }, Opened { model: plain, .. }) = (open(changed)?, open(plain)?);
        Ok(Self { changed, plain, texts })
    }
}

/// Tokens that are read at once: so many rows of logits are held.
const AT_ONCE: usize = 16;

/// Reads every text with both, and compares them after each token.
fn losses(
    reduced: &mut dyn Executor,
    whole: &mut dyn Executor,
    texts: &[Vec<TokenId>],
    wanted: &dyn Fn() -> Result<(), Error>,
) -> Result<Vec<Option<Loss>>, Error> {
    let mut losses = Vec::new();
    let [chunk, longest] = [
        AT_ONCE.min(reduced.limits().chunk).min(whole.limits().chunk).max(1),
        reduced.limits().longest().min(whole.limits().longest()),
    ];
    for tokens in texts {
        let mut at = 0;
        for part in tokens[..tokens.len().min(longest)].chunks(chunk) {
            wanted()?;
            let mut plan = StepPlan::default();
            plan.push(SLOT, at, part, Wanted::All);
            let (expected, found) = (whole.step(&plan)?, reduced.step(&plan)?);
            losses.extend((0..part.len()).map(|row| Loss::of(expected.row(row), found.row(row))));
            at += part.len();
        }
        reduced.truncate(SLOT, 0)?;
        whole.truncate(SLOT, 0)?;
    }
    Ok(losses)
}

/// What was lost on average; none where a model gave nonsense.
fn lost(losses: &[Option<Loss>]) -> Option<Quality> {
    let all: Vec<&Loss> = losses.iter().map(Option::as_ref).collect::<Option<_>>()?;
    let mean = |of: fn(&Loss) -> f64| all.iter().map(|loss| of(loss)).sum::<f64>() / all.len().max(1) as f64;
    let some = all.iter().any(|loss| loss.tokens == Given::Some);
    Some(Quality::Decoder {
        positions: all.len(),
        divergence: mean(|loss| loss.divergence),
        agreement: mean(|loss| if loss.agrees { 1.0 } else { 0.0 }),
        mass: some.then(|| mean(|loss| loss.mass)),
    })
}

/// The least of the texts' cosines; none where a model gave nonsense.
fn least_cosine(texts: &[TextMeasure]) -> Option<Quality> {
    let cosines: Vec<f64> = texts.iter().map(|text| text.cosine).collect::<Option<_>>()?;
    Some(Quality::Encoder { texts: texts.len(), cosine: cosines.into_iter().fold(1.0, f64::min) })
}

fn broken(reason: &str) -> Error {
    let message = format!("the reduced model cannot be used: {reason}; leave out less of it");
    Error::Invalid { param: "drop_layers", message }
}

fn of_decoder(positions: &[Position]) -> Result<Quality, Error> {
    if let Some(reason) = decoder_verdict(positions) {
        return Err(refused(&reason));
    }
    let count = positions.len().max(1) as f64;
    Ok(Quality::Decoder {
        positions: positions.len(),
        divergence: positions.iter().filter_map(|position| position.divergence).sum::<f64>() / count,
        agreement: positions.iter().filter(|position| position.agrees).count() as f64 / count,
        mass: None,
    })
}

fn of_encoder(texts: &[TextMeasure]) -> Result<Quality, Error> {
    if let Some(reason) = encoder_verdict(texts) {
        return Err(refused(&reason));
    }
    least_cosine(texts).ok_or_else(|| refused("it gives numbers that are not finite"))
}

fn refused(reason: &str) -> Error {
    let message = format!(
        "passes: with them the model answers otherwise than without, which they must not change: {reason}; compile \
         without them, and report this"
    );
    Error::Invalid { param: "passes", message }
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
        let found = of_decoder(&[position(0.001, true), position(0.003, false)]).unwrap();
        assert_eq!(found, Quality::Decoder { positions: 2, divergence: 0.002, agreement: 0.5, mass: None });
        let text = |cosine| TextMeasure { text: 0, tokens: 3, cosine: Some(cosine) };
        let found = of_encoder(&[text(0.9995), text(1.0)]).unwrap();
        assert_eq!(found, Quality::Encoder { texts: 2, cosine: 0.9995 });
        let error = of_decoder(&[position(0.5, true)]).unwrap_err().to_string();
        assert!(error.contains("nats on average") && error.contains("compile without"), "{error}");
        assert!(of_encoder(&[text(0.9)]).is_err());
    }

    #[test]
    fn a_loss_is_stated_whatever_it_is() {
        let loss = |mass, divergence, agrees, tokens| Some(Loss { mass, divergence, agrees, tokens });
        let all = [loss(1.0, 3.0, false, Given::All), loss(1.0, 1.0, true, Given::All)];
        let expect = |mass| Quality::Decoder { positions: 2, divergence: 2.0, agreement: 0.5, mass };
        assert_eq!(lost(&all), Some(expect(None)));
        let some = [loss(0.9, 3.0, false, Given::Some), loss(0.7, 1.0, true, Given::Some)];
        let Some(Quality::Decoder { mass: Some(mass), .. }) = lost(&some) else { panic!("no mass") };
        assert!((mass - 0.8).abs() < 1e-12);
        assert_eq!(lost(&[all[0].clone(), None]), None);
        let text = |cosine| TextMeasure { text: 0, tokens: 3, cosine };
        let found = least_cosine(&[text(Some(0.2)), text(Some(0.9))]);
        assert_eq!(found, Some(Quality::Encoder { texts: 2, cosine: 0.2 }));
        assert_eq!(least_cosine(&[text(None)]), None);
    }
}
