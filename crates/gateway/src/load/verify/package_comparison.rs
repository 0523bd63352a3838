//! Agreement of a package with another package of the same model over a text. Both run on the CPU, and decoders with dynamic
//! shapes have a KV cache in single precision, so that nothing but the weights, and the activations of graphs with fixed
//! shapes, differs.

use std::sync::Arc;

use narthex_device::{ep::Facts, runtime::Runtime, static_shapes::Form};
use narthex_spec::{KvCacheDtype, ProgressSink, TokenId, Variant, manifest::CertificateFigures};

use super::{compare_encoders, reference_text::ReferenceText};
use crate::{
    cancel::Cancel,
    config::Config,
    error::Error,
    library::{Library, package::Package},
    load::{
        request::{DeviceAssignment, LoadRequest},
        sessions::{self, Model},
    },
};

/// Maximum number of paragraphs that an encoder reads.
const PARAGRAPHS: usize = 64;

/// Library, runtime and callbacks of a comparison of packages.
#[derive(Clone, Copy)]
pub(crate) struct ComparisonContext<'a> {
    pub(crate) library: &'a Library,
    pub(crate) runtime: &'static Runtime,
    pub(crate) progress: &'a dyn ProgressSink,
    pub(crate) cancel: &'a Cancel,
}

/// Compares a package with a reference over a text: the variant that its scheme is for, with the dynamic variant of the
/// reference. Only one of two decoders is in memory at a time.
///
/// # Errors
/// [`Error::Invalid`] for packages whose tokens differ, for models that neither generate nor encode text, for output that
/// is not finite, and for a text that is too short.
pub(crate) fn compare(
    context: ComparisonContext<'_>,
    reference: Package,
    other: Package,
    text: &str,
) -> Result<CertificateFigures, Error> {
    if reference.manifest.architecture.is_decoder() != other.manifest.architecture.is_decoder() {
        return Err(incomparable(&reference, &other, "one generates text, and the other does not"));
    }
    if reference.manifest.architecture.is_decoder() {
        return compare_decoders(context, reference, other, text);
    }

    let texts = paragraphs(&reference, text)?;
    if texts != paragraphs(&other, text)? {
        return Err(incomparable(&reference, &other, "their tokenizers differ"));
    }
    let names = [&reference, &other].map(|package| package.manifest.name.clone());
    let variant = other.manifest.recipe.measured_variant();
    let models = [context.open(reference, Variant::Dynamic)?, context.open(other, variant)?];
    let [Model::Encoder(mut reference), Model::Encoder(mut other)] = models else {
        let message = format!(
            "{} and {} neither generate nor encode text; expected two chat or two embedding models",
            names[0], names[1]
        );
        return Err(Error::Invalid { param: "model", message });
    };

    let similarities = compare_encoders(&mut other, &mut reference, &texts, &|| (), context.cancel)?;
    let cosines: Option<Vec<f64>> = similarities.iter().map(|text| text.cosine).collect();
    let cosines = cosines.filter(|cosines| !cosines.is_empty()).ok_or_else(not_finite)?;
    Ok(CertificateFigures::Encoder {
        texts: cosines.len(),
        mean_cosine: cosines.iter().sum::<f64>() / cosines.len() as f64,
        lowest_cosine: cosines.iter().copied().fold(1.0, f64::min),
    })
}

fn compare_decoders(
    context: ComparisonContext<'_>,
    reference: Package,
    other: Package,
    text: &str,
) -> Result<CertificateFigures, Error> {
    let variant = other.manifest.recipe.measured_variant();
    let mut tokens = ReferenceText::tokens(&reference, text)?;
    if tokens != ReferenceText::tokens(&other, text)? {
        return Err(incomparable(&reference, &other, "their tokenizers differ"));
    }
    if let Some(shapes) = other.manifest.recipe.fixed.as_ref().filter(|_| variant == Variant::Static) {
        tokens.truncate(shapes.context);
    }
    let reference_name = reference.manifest.name.clone();
    let other_name = other.manifest.name.clone();

    let reference = {
        let mut executor = context.open(reference, Variant::Dynamic)?.decoder(&reference_name)?;
        ReferenceText::new(&mut executor, tokens, context.cancel)?
    };
    let mut other = context.open(other, variant)?.decoder(&other_name)?;
    let comparison = reference.compare(&mut other, context.cancel)?;
    if comparison.positions == 0 {
        let message = "the text is too short: expected more than 32 tokens".to_owned();
        return Err(Error::Invalid { param: "text", message });
    }

    let reference_perplexity = reference.perplexity().ok_or_else(not_finite)?;
    let change = comparison.perplexity_change.ok_or_else(not_finite)?;
    Ok(CertificateFigures::Decoder {
        positions: comparison.positions,
        perplexity: reference_perplexity * (1.0 + change),
        reference_perplexity,
        divergence: comparison.divergence.ok_or_else(not_finite)?,
        agreement: comparison.agreeing as f64 / comparison.positions as f64,
    })
}

impl ComparisonContext<'_> {
    /// Opens a package alone, with room for its longest sequence.
    pub(crate) fn open(&self, package: Package, variant: Variant) -> Result<Model, Error> {
        let kv_cache_dtype = KvCacheDtype::F32;
        let kv_budget = Some(usize::MAX);
        let config = Config { slots: 1, kv_budget, kv_cache_dtype, ..(*self.library.config).clone() };
        let request = LoadRequest {
            package: Arc::new(package),
            runtime: self.runtime,
            facts: Arc::new(Facts::default()),
            config: Arc::new(config),
            store: self.library.store.clone(),
            reservation: None,
            progress: self.progress,
            cancel: self.cancel.clone(),
        };
        Ok(sessions::open(&request, &DeviceAssignment::cpu(), variant, Form::Graph)?.model)
    }
}

/// Returns the tokens of each paragraph of a text for an encoder.
fn paragraphs(package: &Package, text: &str) -> Result<Vec<Vec<TokenId>>, Error> {
    let tokenizer = package.read_tokenizer()?;
    let paragraphs = text.lines().filter(|line| !line.trim().is_empty()).take(PARAGRAPHS);
    Ok(paragraphs.map(|line| tokenizer.encode_document(line)).collect::<Result<_, _>>()?)
}

fn incomparable(reference: &Package, other: &Package, reason: &str) -> Error {
    let reference = &reference.manifest.name;
    let other = &other.manifest.name;
    let message =
        format!("{reference} and {other} cannot be compared: {reason}; expected two packages of one model");
    Error::Invalid { param: "model", message }
}

fn not_finite() -> Error {
    let message = "the output of a model is not finite, so that the loss cannot be measured".to_owned();
    Error::Invalid { param: "model", message }
}
