//! Request to compile a model.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

pub use narthex_checkpoint::Adapter;
use narthex_compile::CompileError;
pub use narthex_compile::{
    calibration_text::CalibrationText,
    vocab_subset::VocabSubset,
    width_plan::{WidthPlan, text as width_plan_text},
};
use narthex_spec::{
    BlockSize, Budget, Calibration, ContextFactor, LayerList, MatFormer, ModelName, Pass, RangeMethod,
    RoundingMethod, ScalingMethod, Scheme, Target,
    adapter::{AdapterScale, MergedAdapter},
    arch::{EncoderHead, Pooling},
    id::BadModelName,
    manifest::Manifest,
    recipe::FixedShapes,
};

use crate::{error::Error, library::package_key::PackageKey};

/// Request to compile a model.
///
/// ```
/// use narthex_gateway::{CompileRequest, Rebuild};
///
/// let request = CompileRequest {
///     target: Some("qnn:x-elite".parse().unwrap()),
///     contexts: vec![4096],
///     rebuild: Rebuild::Always,
///     ..CompileRequest::new("w4".parse().unwrap())
/// };
/// assert_eq!(request.scheme.to_string(), "w4");
/// ```
#[derive(Debug, Clone)]
pub struct CompileRequest {
    /// Name of the package; by default that of the model.
    pub name: Option<ModelName>,
    /// Weight scheme.
    pub scheme: Scheme,
    /// Number of elements of a weight that share one scale; by default 32, or what the target's compiler accepts.
    pub block: Option<BlockSize>,
    /// Calibration of weights with the activations of a text.
    pub calibration: Calibration,
    /// Text of the user for the calibration; by default the one that ships with Narthex.
    pub calibration_text: Option<CalibrationText>,
    /// Choice of the ranges of integer activations; by default that of the scheme.
    pub ranges: Option<RangeMethod>,
    /// Choice of the integers of weights with 4 bits; by default the nearest ones.
    pub rounding: Option<RoundingMethod>,
    /// Choice of the scales of channels; by default powers of two in schemes of 8 bits.
    pub scaling: Option<ScalingMethod>,
    /// Limit that decides which layers have 8 bits in a scheme of 4; by default none has.
    pub budget: Option<Budget>,
    /// Layers that have 8 bits in a scheme of 4, instead of a budget.
    pub plan: Option<WidthPlan>,
    /// Measurement of what each layer loses in 4 bits, even without a certificate.
    pub layer_losses: bool,
    /// LoRA adapters whose updates are added to the weights. The package has a name of its own.
    pub adapters: Vec<Adapter>,
    /// Smaller model to extract from a MatFormer model. Its package has a name of its own.
    pub matformer: Option<MatFormer>,
    /// Factor by which YaRN extends the context. The package has a name of its own.
    pub yarn: Option<ContextFactor>,
    /// Layers to leave out, numbered as in the checkpoint. The package has a name of its own, and its manifest states
    /// how far its answers differ from the whole model's.
    pub drop_layers: Option<LayerList>,
    /// Tokens that the head of a chat model keeps. The package is named and measured as for [`Self::drop_layers`].
    pub vocabulary: Option<VocabSubset>,
    /// Pooling of an embedding model, in place of the one that its files state.
    pub pooling: Option<Pooling>,
    /// Compile a language model as a reranker that answers yes or no, with the template of Qwen3-Reranker. Published models are
    /// recognised without it.
    pub rerank: bool,
    /// Measurement of the loss against the model in `f32`.
    pub certification: Certification,
    /// Folder for the intermediate stages as text.
    pub keep_stages: Option<PathBuf>,
    /// Treatment of an existing package.
    pub rebuild: Rebuild,
    /// NPU to compile for: ahead of time, or for OpenVINO in the form that its compiler accepts during a load.
    pub target: Option<Target>,
    /// Contexts of the NPU's graphs in tokens: the longest sequence, and shorter ones with graphs of their own. By
    /// default 2048, or the model's maximum if that is less.
    pub contexts: Vec<usize>,
    /// New tokens of the NPU's prefill graphs; by default chosen for the model's size. Encoders have none.
    pub prefill: Vec<usize>,
    /// Passes over the graphs; `None` for those of the installed package, if there is one. Any pass implies static
    /// graphs.
    pub passes: Option<BTreeSet<Pass>>,
    /// Maximum bytes of weights in one of the NPU's graphs, beyond which the layers are divided; `None` for the NPU's
    /// limit.
    pub part_bytes: Option<u64>,
}

impl CompileRequest {
    /// Creates a request with the default settings: calibrated, without a certificate and an NPU, keeping an existing
    /// package.
    pub fn new(scheme: Scheme) -> Self {
        Self {
            name: None,
            scheme,
            block: None,
            calibration: Calibration::Standard,
            calibration_text: None,
            ranges: None,
            rounding: None,
            scaling: None,
            budget: None,
            plan: None,
            layer_losses: false,
            adapters: Vec::new(),
            matformer: None,
            yarn: None,
            drop_layers: None,
            vocabulary: None,
            pooling: None,
            rerank: false,
            certification: Certification::Never,
            keep_stages: None,
            rebuild: Rebuild::IfMissing,
            target: None,
            contexts: Vec::new(),
            prefill: Vec::new(),
            passes: None,
            part_bytes: None,
        }
    }

    /// Returns true if a setting of the graphs is stated, which an installed package may not have.
    pub(super) fn states_graphs(&self) -> bool {
        self.target.is_some()
            || self.block.is_some()
            || self.ranges.is_some()
            || self.rounding.is_some()
            || self.scaling.is_some()
            || self.budget.is_some()
            || self.plan.is_some()
            || !self.adapters.is_empty()
            || !self.contexts.is_empty()
            || !self.prefill.is_empty()
            || self.part_bytes.is_some()
            || self.pooling.is_some()
            || self.rerank
    }

    /// Returns true if a package has every stated setting of the graphs.
    pub(super) fn is_satisfied_by(&self, manifest: &Manifest) -> bool {
        let Self { contexts, prefill, .. } = self;
        let Manifest { recipe, architecture, .. } = manifest;
        let requested = FixedShapes::for_contexts(contexts).with_prefill(prefill);
        let has_shapes = contexts.is_empty() && prefill.is_empty()
            || recipe.fixed.as_ref().is_some_and(|shapes| {
                (contexts.is_empty() || shapes.contexts().eq(requested.contexts()))
                    && (prefill.is_empty() || shapes.prefill == requested.prefill)
            });
        let has_ranges = self.ranges.is_none_or(|requested| {
            recipe.activations.is_some_and(|activations| activations.ranges == requested)
        });
        let has_pooling = self.pooling.is_none_or(|requested| {
            let head = architecture.head();
            matches!(head, Some(EncoderHead::Embedding { pooling, .. }) if *pooling == requested)
        });

        has_shapes
            && has_ranges
            && has_pooling
            && (!self.rerank || manifest.pairs.is_some())
            && self.target.as_ref().is_none_or(|requested| recipe.targets.contains(requested))
            && self.block.is_none_or(|requested| recipe.block == requested)
            && self.rounding.is_none_or(|requested| recipe.rounding == requested)
            && self.scaling.is_none_or(|requested| recipe.scaling == requested)
            && self.budget.is_none_or(|requested| recipe.budget == Some(requested))
            && self.plan.as_ref().is_none_or(|requested| recipe.plan == Some(requested.sha256()))
            && (self.adapters.is_empty() || recipe.adapters == self.merged_adapters())
            && self.part_bytes.is_none_or(|requested| recipe.part_bytes == requested)
    }

    /// Returns what the package states about its adapters.
    pub(super) fn merged_adapters(&self) -> Vec<MergedAdapter> {
        self.adapters.iter().map(|adapter| adapter.entry().clone()).collect()
    }

    /// Returns the package's key: the requested name, else that of `base` with a suffix for each change, as in
    /// `gemma3n:e4b-e2b` or `smollm2:135m-drop3.7`.
    pub(crate) fn package_key(&self, mut base: PackageKey) -> Result<PackageKey, Error> {
        if let Some(name) = &self.name {
            return Ok(PackageKey { name: name.clone(), ..base });
        }
        let changes = [
            ("lora", (!self.adapters.is_empty()).then(|| adapters_slug(&self.adapters))),
            ("matformer", self.matformer.as_ref().map(MatFormer::slug)),
            ("yarn", self.yarn.as_ref().map(ContextFactor::slug)),
            ("drop_layers", self.drop_layers.as_ref().map(LayerList::slug)),
            ("prune_vocabulary", self.vocabulary.as_ref().map(VocabSubset::slug)),
        ];
        for (param, slug) in changes {
            let Some(slug) = slug else { continue };
            base.name = format!("{}-{slug}", base.name)
                .parse()
                .map_err(|error: BadModelName| Error::Invalid { param, message: error.to_string() })?;
        }
        Ok(base)
    }
}

/// Returns the suffix of a model's name: `lora.poems`, or `lora.poems.0.5` with a scale.
fn adapters_slug(adapters: &[Adapter]) -> String {
    let mut slug = "lora".to_owned();
    for MergedAdapter { name, scale, .. } in adapters.iter().map(Adapter::entry) {
        let is_allowed = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-';
        let name = name.to_ascii_lowercase().replace(['_', '.', ' ', '/'], "-");
        let name: String = name.chars().filter(is_allowed).take(MAX_ADAPTER_SLUG).collect();
        slug.push_str(&format!(".{name}"));
        if *scale != AdapterScale::default() {
            slug.push_str(&format!(".{scale}"));
        }
    }
    slug
}

/// Reads the tokens that a head keeps from a file: a JSON list of token ids (`.json`), or a text, of whose tokens at
/// most `max_tokens` are kept.
///
/// # Errors
/// [`Error::Compile`] for a file that is unreadable or not a list.
pub fn vocabulary(file: &Path, max_tokens: Option<usize>) -> Result<VocabSubset, Error> {
    Ok(VocabSubset::read(file, max_tokens).map_err(CompileError::from)?)
}

/// Reads the widths of layers from a file.
///
/// # Errors
/// [`Error::Compile`] for a file that is unreadable or not a plan.
pub fn width_plan(file: &Path) -> Result<WidthPlan, Error> {
    Ok(WidthPlan::read(file).map_err(CompileError::from)?)
}

/// Reads a text for the calibration: plain text, or JSON lines in a file named `.jsonl`.
///
/// # Errors
/// An error if the file cannot be read or has no text.
pub fn calibration_text(file: &Path) -> Result<CalibrationText, Error> {
    Ok(CalibrationText::read(file).map_err(CompileError::from)?)
}

/// Maximum length of an adapter's name in the name of a package.
const MAX_ADAPTER_SLUG: usize = 40;

/// Largest float model in bytes whose package is built for a certificate that nobody asked for.
pub(super) const AFFORDABLE: u64 = 4_000_000_000;

/// Measurement of a package's loss against the model in `f32`, which its manifest then states. A loss above the bound of
/// the scheme is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certification {
    /// No measurement.
    Never,
    /// Only if the model is small enough in `f32`; otherwise a note states the reason.
    IfAffordable,
    /// Always.
    Always,
    /// Always; a loss above the bound is recorded and not an error.
    AcceptLoss,
}

/// Treatment of an existing package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuild {
    /// Compile only if the package is missing.
    IfMissing,
    /// Compile again.
    Always,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduced_models_have_names_of_their_own() {
        let key = PackageKey { name: "gemma3n:e4b".parse().unwrap(), scheme: Scheme::W4 };
        let plain = CompileRequest::new(Scheme::W4);
        let sized = |text: &str| CompileRequest {
            matformer: Some(text.parse().unwrap()),
            ..CompileRequest::new(Scheme::W4)
        };
        let name = |request: &CompileRequest| request.package_key(key.clone()).unwrap().name.to_string();
        assert_eq!(name(&sized("e2b")), "gemma3n:e4b-e2b");
        assert_eq!(name(&sized("ffn=8192*30,skip=20-24")), "gemma3n:e4b-ffn8192x30-skip20-24");
        let extended = CompileRequest { yarn: Some("4".parse().unwrap()), ..plain.clone() };
        assert_eq!(name(&extended), "gemma3n:e4b-yarn4");
        let dropped = CompileRequest { drop_layers: Some("7,3".parse().unwrap()), ..plain.clone() };
        assert_eq!(name(&dropped), "gemma3n:e4b-drop3.7");
        assert_eq!(plain.package_key(key.clone()).unwrap(), key);
        let named = CompileRequest { name: Some("mine".parse().unwrap()), ..dropped.clone() };
        assert_eq!(name(&named), "mine");
        let long = PackageKey { name: "x".repeat(198).parse().unwrap(), ..key };
        assert_eq!(sized("e2b").package_key(long.clone()).unwrap_err().param(), Some("matformer"));
        assert_eq!(dropped.package_key(long).unwrap_err().param(), Some("drop_layers"));
    }
}
