//! What a model's passes cost: it reads the golden texts beside its twin, which was compiled without them. Both run on
//! the CPU, so that nothing but the passes differs.

use std::path::Path;

use narthex_device::{ep::Device, fixed::Form};
use narthex_spec::{
    ProgressSink, Variant,
    manifest::{Manifest, Quality},
    progress::{Stage, Unit},
};
use narthex_text::tokenizer::Tokenizer;

use super::{
    compare::{Position, TextMeasure, decoder_verdict, encoder_verdict},
    decoder, encoder, golden,
};
use crate::{
    cancel::Cancel,
    config::Config,
    error::Error,
    gateway::Inner,
    package,
    start::{Model, Opened, Opening},
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
    };
    let texts = golden(&opening(plain))?;
    let open = |package| opening(package).open(&Device::Cpu, Variant::Static, Form::Graph);
    let (Opened { model: changed, .. }, Opened { model: plain, .. }) = (open(changed)?, open(plain)?);
    match (changed, plain) {
        (Model::Decoder(mut changed), Model::Decoder(mut plain)) => {
            of_decoder(&decoder(changed.as_mut(), plain.as_mut(), &texts)?)
        }
        (Model::Encoder(mut changed), Model::Encoder(mut plain)) => {
            of_encoder(&encoder(changed.as_mut(), plain.as_mut(), &texts)?)
        }
        _ => Err(refused("it has become another kind of model")),
    }
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
    })
}

fn of_encoder(texts: &[TextMeasure]) -> Result<Quality, Error> {
    if let Some(reason) = encoder_verdict(texts) {
        return Err(refused(&reason));
    }
    let cosine = texts.iter().filter_map(|text| text.cosine).fold(1.0, f64::min);
    Ok(Quality::Encoder { texts: texts.len(), cosine })
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
        assert_eq!(found, Quality::Decoder { positions: 2, divergence: 0.002, agreement: 0.5 });
        let text = |cosine| TextMeasure { text: 0, tokens: 3, cosine: Some(cosine) };
        let found = of_encoder(&[text(0.9995), text(1.0)]).unwrap();
        assert_eq!(found, Quality::Encoder { texts: 2, cosine: 0.9995 });
        let error = of_decoder(&[position(0.5, true)]).unwrap_err().to_string();
        assert!(error.contains("nats on average") && error.contains("compile without"), "{error}");
        assert!(of_encoder(&[text(0.9)]).is_err());
    }
}
