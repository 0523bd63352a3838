//! Recipes: the settings of a compile.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

use crate::{
    BlockSize, Budget, ContextFactor, LayerList, MatFormer, Pass, Scheme, Sha256, Target,
    adapter::MergedAdapter, name::named_set, scheme::ActivationBits, variant::Variant,
};

/// Text on which a compile measures activations, to scale channels before weights are quantised.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, Display, IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Calibration {
    /// No text: channels are not scaled.
    #[default]
    None,
    /// The text that ships with the compiler, or a text of the user.
    Standard,
}

impl Calibration {
    /// Every calibration.
    pub const ALL: [Self; 2] = [Self::Standard, Self::None];
}

named_set!(Calibration, "calibration");

/// Form of attention in graphs with fixed shapes. Compilers of NPUs accept different forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadOrder {
    /// Projections are divided into heads, and heads are in front of tokens before they are rotated. Qualcomm's compiler
    /// then stores the weights of all graphs once.
    #[default]
    HeadsFirst,
    /// Queries and keys are rotated while tokens are in front of heads. Intel's compiler needs this.
    TokensFirst,
}

impl HeadOrder {
    /// Returns `true` for the default order.
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Choice of the range that integers represent, from the activations of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Display, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum RangeMethod {
    /// From the smallest to the largest value.
    MinMax,
    /// Without the most extreme values of each end, one of 10,000.
    Percentile,
    /// The range with the least mean squared error of the rounded values.
    Mse,
}

impl RangeMethod {
    /// Every method.
    pub const ALL: [Self; 3] = [Self::MinMax, Self::Percentile, Self::Mse];
}

named_set!(RangeMethod, "range method");

/// Choice of the integers that represent a weight of 4 bits.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, Display, IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum RoundingMethod {
    /// The nearest ones.
    #[default]
    Nearest,
    /// GPTQ: later columns of a weight compensate the errors of earlier ones, by the inputs that the layer receives for a
    /// text.
    Gptq,
}

impl RoundingMethod {
    /// Every method.
    pub const ALL: [Self; 2] = [Self::Nearest, Self::Gptq];

    /// Returns `true` for the default method.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

named_set!(RoundingMethod, "rounding method");

/// Choice of the scales of the channels between layers. The scales are folded into the weights on both sides, so the model
/// computes the same function before its weights and activations are rounded.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, Display, IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ScalingMethod {
    /// Powers of two by the sizes of channels, in front of weights of 8 bits. Other weights are not scaled.
    #[default]
    Powers,
    /// No scales.
    None,
    /// SmoothQuant: the ranges of activations and weights are balanced.
    Smooth,
    /// AWQ: large channels get finer integers in weights of 4 bits. The strength with the least error is searched.
    Awq,
}

impl ScalingMethod {
    /// Every method.
    pub const ALL: [Self; 4] = [Self::Powers, Self::None, Self::Smooth, Self::Awq];

    /// Returns `true` for the default method.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns `true` if the method needs a run of the model. A compile that cannot run it is refused then.
    pub fn is_measured(self) -> bool {
        matches!(self, Self::Smooth | Self::Awq)
    }
}

named_set!(ScalingMethod, "scaling method");

/// Integers that represent the inputs and outputs of linear layers in the static variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IntegerActivations {
    /// Width of the integers.
    pub bits: ActivationBits,
    /// Choice of their range.
    pub ranges: RangeMethod,
}

impl IntegerActivations {
    /// Returns the default settings of a scheme; `None` if its activations are floats. `min-max` loses least: layers whose
    /// activations it represents badly have 16 bits (`bench/runs/integers-2026-11-29.md`).
    pub fn of(scheme: Scheme) -> Option<Self> {
        Some(Self { bits: scheme.activation_bits()?, ranges: RangeMethod::MinMax })
    }
}

/// All settings of a compile; part of the identity of the package.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recipe {
    /// Weight scheme.
    pub scheme: Scheme,
    /// Number of elements along the input dimension that share one scale.
    pub block: BlockSize,
    /// Blocks of integers have no zero points. Weights with one scale per row never have any.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub symmetric: bool,
    /// Choice of the integers of weights with 4 bits, set by the compile: without calibration, weights are rounded to
    /// nearest.
    #[serde(default, skip_serializing_if = "RoundingMethod::is_default")]
    pub rounding: RoundingMethod,
    /// Choice of the scales of channels, set by the compile: the default if the requested method had no effect.
    #[serde(default, skip_serializing_if = "ScalingMethod::is_default")]
    pub scaling: ScalingMethod,
    /// Limit that decides which layers of a package of 4 bits have 8; `None` for one width.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Digest of the file that states the widths of layers; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Sha256>,
    /// Form of attention in graphs with fixed shapes.
    #[serde(default, skip_serializing_if = "HeadOrder::is_default")]
    pub head_order: HeadOrder,
    /// Integers for activations in the static variant; `None` for floats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activations: Option<IntegerActivations>,
    /// `accuracy_level` of `MatMulNBits`: 0 computes in the activations' type, 4 with int8 activations.
    pub accuracy_level: u8,
    /// Calibration of channel scales; `none` in manifests without the field.
    #[serde(default)]
    pub calibration: Calibration,
    /// Digest of the user's text for the calibration; `None` for the one that ships with the compiler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_text: Option<Sha256>,
    /// Adapters in the weights, in the order in which they were added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<MergedAdapter>,
    /// Smaller model from the checkpoint; `None` for the whole model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matformer: Option<MatFormer>,
    /// Extension of the context by YaRN; `None` for the context of the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yarn: Option<ContextFactor>,
    /// Dropped layers, numbered as in the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_layers: Option<LayerList>,
    /// Tokens that the head keeps, set by the compile; `None` for all tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<KeptTokens>,
    /// Shapes of the static variant; `None` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedShapes>,
    /// Maximum size of the weights of one graph of a decoder's fixed layers, in bytes. A larger model has several
    /// graphs in sequence.
    #[serde(default = "usual_part_bytes")]
    pub part_bytes: u64,
    /// NPUs for ahead-of-time compilation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
    /// Graph rewrites.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub passes: BTreeSet<Pass>,
}

/// A reduced vocabulary of a model's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeptTokens {
    /// Number of tokens.
    pub tokens: usize,
    /// Digest of the list of tokens in the package.
    pub sha256: Sha256,
}

/// Returns the part size that every NPU supports, in bytes.
fn usual_part_bytes() -> u64 {
    1 << 30
}

/// The shapes of the static variant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FixedShapes {
    /// Maximum sequence length of a decoder, in tokens.
    pub context: usize,
    /// Shorter contexts in ascending order. Each has its own graphs, which attend to fewer tokens and run faster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shorter: Vec<usize>,
    /// Number of new tokens of each prefill graph, in ascending order, each above 1. If a recipe has none, the compiler
    /// chooses by the model's size.
    pub prefill: Vec<usize>,
    /// Lengths of an encoder's graphs in tokens, in ascending order.
    pub buckets: Vec<usize>,
}

/// Shape of a decoder's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepShape {
    /// Number of new tokens.
    pub tokens: usize,
    /// Number of columns of the past.
    pub past: usize,
}

impl FixedShapes {
    /// Default maximum sequence length, in tokens.
    pub const USUAL_CONTEXT: usize = 2048;

    /// Returns the shapes for sequences of up to `context` tokens: prefill lengths that the compiler chooses, and
    /// buckets of 64 to 512 tokens for texts.
    pub fn new(context: usize) -> Self {
        let shorter = Vec::new();
        let prefill = Vec::new();
        Self { context, shorter, prefill, buckets: vec![64, 128, 256, 512] }.within(context)
    }

    /// Returns the shapes for several contexts in any order, or for the default context if there are none.
    pub fn for_contexts(contexts: &[usize]) -> Self {
        let longest = contexts.iter().copied().max().unwrap_or(Self::USUAL_CONTEXT);
        Self { shorter: ascending(contexts), ..Self::new(longest) }.within(longest)
    }

    /// Returns the shapes with prefill graphs of these lengths in any order; unchanged without lengths.
    #[must_use]
    pub fn with_prefill(self, lengths: &[usize]) -> Self {
        if lengths.is_empty() {
            return self;
        }
        let mut prefill = ascending(lengths);
        prefill.retain(|&length| length > 1);
        let context = self.context;
        Self { prefill, ..self }.within(context)
    }

    /// Returns all contexts in ascending order.
    pub fn contexts(&self) -> impl Iterator<Item = usize> {
        self.shorter.iter().copied().chain([self.context])
    }

    /// Returns the shapes of a decoder's steps: for each context, one new token and each prefill length within it.
    pub fn steps(&self) -> impl Iterator<Item = StepShape> {
        self.contexts().flat_map(|past| {
            let prefill = self.prefill.iter().copied().filter(move |&tokens| tokens <= past);
            std::iter::once(1).chain(prefill).map(move |tokens| StepShape { tokens, past })
        })
    }

    /// Returns the shapes with these prefill lengths if they have none.
    pub fn or_prefill(mut self, lengths: &[usize]) -> Self {
        if self.prefill.is_empty() {
            self.prefill = lengths.to_vec();
        }
        self
    }

    /// Returns the shapes for a model whose sequences have at most `longest` tokens.
    pub fn within(mut self, longest: usize) -> Self {
        let longest = longest.max(2);
        self.context = self.context.min(longest);
        self.shorter.retain(|&shorter| (2..self.context).contains(&shorter));
        for (lengths, most) in [(&mut self.prefill, self.context.max(2)), (&mut self.buckets, longest)] {
            let over = lengths.iter().any(|&length| length >= most);
            lengths.retain(|&length| length < most);
            if over {
                lengths.push(most);
            }
        }
        self
    }
}

/// Returns the distinct numbers in ascending order.
fn ascending(numbers: &[usize]) -> Vec<usize> {
    numbers.iter().copied().collect::<BTreeSet<_>>().into_iter().collect()
}

impl Recipe {
    /// Returns true if the weights are other ones than the checkpoint's, before they are quantised.
    pub fn is_another_model(&self) -> bool {
        self.is_reduced() || self.matformer.is_some() || self.yarn.is_some() || !self.adapters.is_empty()
    }

    /// Returns true if the model is reduced, which changes its answers.
    pub fn is_reduced(&self) -> bool {
        self.drop_layers.is_some() || self.vocabulary.is_some()
    }

    /// Returns the variant whose loss is measured: the one that the scheme is for.
    pub fn measured_variant(&self) -> Variant {
        if self.activations.is_some() && self.fixed.is_some() { Variant::Static } else { Variant::Dynamic }
    }

    /// Returns the recipe for these targets: in the form that their compilers accept, and with the blocks that stay packed
    /// there. A `block` that the user has set remains.
    #[must_use]
    pub fn for_targets(self, targets: Vec<Target>, block: Option<BlockSize>) -> Self {
        let for_intel = targets.iter().any(Target::is_intel_npu);
        let default = match self.scheme {
            // Intel's compiler expands blocks of 8 bits, zero points, and rows that blocks do not divide.
            Scheme::W8 | Scheme::W4A16 if for_intel => BlockSize::Channel,
            Scheme::W4 if for_intel => BlockSize::Elements(64),
            _ => self.block,
        };
        let head_order = if for_intel { HeadOrder::TokensFirst } else { self.head_order };
        Self {
            block: block.unwrap_or(default),
            symmetric: self.symmetric || for_intel,
            head_order,
            targets,
            ..self
        }
    }

    /// Returns `true` if blocks of integers have no zero points.
    pub fn is_symmetric(&self) -> bool {
        self.symmetric || self.block == BlockSize::Channel
    }

    /// Returns the recipe for a scheme with the default block (32, or a channel for 8 bits with integer activations) and
    /// accuracy level (4, or 0 for schemes without blocks), without calibration.
    pub fn new(scheme: Scheme) -> Self {
        let accuracy_level = if matches!(scheme, Scheme::F32 | Scheme::F16) { 0 } else { 4 };
        let calibration = Calibration::None;
        let activations = IntegerActivations::of(scheme);
        Self {
            scheme,
            block: if activations.is_some() && scheme.of_weights() == Scheme::W8 {
                BlockSize::Channel
            } else {
                BlockSize::Elements(32)
            },
            symmetric: false,
            rounding: RoundingMethod::Nearest,
            scaling: ScalingMethod::Powers,
            budget: None,
            plan: None,
            head_order: HeadOrder::default(),
            activations,
            accuracy_level,
            calibration,
            calibration_text: None,
            adapters: Vec::new(),
            matformer: None,
            yarn: None,
            drop_layers: None,
            vocabulary: None,
            fixed: None,
            part_bytes: usual_part_bytes(),
            targets: Vec::new(),
            passes: BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_from_before_there_was_calibration_are_read() {
        let recipe = Recipe { calibration: Calibration::Standard, ..Recipe::new(Scheme::W8) };
        let mut json = serde_json::to_value(&recipe).unwrap();
        assert_eq!(json["calibration"], "standard");
        json.as_object_mut().unwrap().remove("calibration");
        assert_eq!(serde_json::from_value::<Recipe>(json).unwrap(), Recipe::new(Scheme::W8));
    }

    #[test]
    fn a_target_sets_the_form_that_its_compiler_accepts() {
        let check = |scheme, target: &str, block, expected: (BlockSize, bool, HeadOrder)| {
            let recipe = Recipe::new(scheme).for_targets(vec![target.parse().unwrap()], block);
            assert_eq!(
                (recipe.block, recipe.is_symmetric(), recipe.head_order),
                expected,
                "{scheme} {target}"
            );
            let json = serde_json::to_value(&recipe).unwrap();
            assert_eq!(serde_json::from_value::<Recipe>(json).unwrap(), recipe);
        };
        let (channel, blocks) = (BlockSize::Channel, BlockSize::Elements);
        check(Scheme::W8, "openvino:npu", None, (channel, true, HeadOrder::TokensFirst));
        check(Scheme::W4, "openvino:npu", None, (blocks(64), true, HeadOrder::TokensFirst));
        check(Scheme::W4, "openvino:npu", Some(channel), (channel, true, HeadOrder::TokensFirst));
        check(Scheme::F16, "openvino:npu", None, (blocks(32), true, HeadOrder::TokensFirst));
        for scheme in [Scheme::W8A16, Scheme::W8A8, Scheme::W4A16] {
            check(scheme, "openvino:npu", None, (channel, true, HeadOrder::TokensFirst));
        }
        check(Scheme::W4A16, "openvino:npu", Some(blocks(64)), (blocks(64), true, HeadOrder::TokensFirst));
        check(Scheme::W4A16, "qnn:x-elite", None, (blocks(32), false, HeadOrder::HeadsFirst));
        for target in ["qnn:x-elite", "openvino:gpu"] {
            check(Scheme::W8, target, None, (blocks(32), false, HeadOrder::HeadsFirst));
            check(Scheme::W8, target, Some(channel), (channel, true, HeadOrder::HeadsFirst));
        }
        let json = serde_json::to_value(Recipe::new(Scheme::W8)).unwrap();
        assert_eq!((&json["block"], json.get("symmetric"), json.get("head_order")), (&32.into(), None, None));
    }

    #[test]
    fn integer_activations_have_8_bit_weights_with_one_scale_per_channel() {
        for scheme in Scheme::ALL {
            let recipe = Recipe::new(scheme);
            let json = serde_json::to_value(&recipe).unwrap();
            assert_eq!(json.get("activations").is_some(), scheme.activation_bits().is_some(), "{scheme}");
            let is_channel = matches!(scheme, Scheme::W8A16 | Scheme::W8A8);
            assert_eq!(recipe.block == BlockSize::Channel, is_channel, "{scheme}");
            assert_eq!(serde_json::from_value::<Recipe>(json).unwrap(), recipe);
        }
        let json = serde_json::to_value(Recipe::new(Scheme::W8A8)).unwrap();
        assert_eq!(json["activations"], serde_json::json!({ "bits": "u8", "ranges": "min-max" }));
        assert_eq!(Scheme::W8A8.of_weights(), Scheme::W8);
    }

    #[test]
    fn shapes_fit_the_model() {
        let check = |context, longest, expected: (usize, &[usize], &[usize])| {
            let shapes = FixedShapes::new(context).or_prefill(&[64]).within(longest);
            assert_eq!((shapes.context, &*shapes.prefill, &*shapes.buckets), expected);
        };
        check(2048, 8192, (2048, &[64], &[64, 128, 256, 512]));
        check(2048, 512, (512, &[64], &[64, 128, 256, 512]));
        check(2048, 256, (256, &[64], &[64, 128, 256]));
        check(2048, 300, (300, &[64], &[64, 128, 256, 300]));
        check(40, 8192, (40, &[40], &[40]));
        check(2048, 64, (64, &[64], &[64]));
        let given = FixedShapes { prefill: vec![8], ..FixedShapes::new(48) };
        assert_eq!(given.or_prefill(&[64]).prefill, [8]);
        // The context of decoders does not limit an encoder's texts.
        let given = FixedShapes { prefill: vec![32], buckets: vec![64], ..FixedShapes::new(16) }.within(512);
        assert_eq!((&*given.prefill, &*given.buckets), (&[16][..], &[64][..]));
    }

    #[test]
    fn contexts_rise_and_fit_the_model() {
        let check = |contexts: &[usize], longest, expected: &[usize]| {
            let shapes = FixedShapes::for_contexts(contexts).within(longest);
            assert_eq!(shapes.contexts().collect::<Vec<_>>(), expected);
        };
        check(&[4096, 512, 1024, 512], 8192, &[512, 1024, 4096]);
        check(&[4096, 512, 1024], 1024, &[512, 1024]);
        check(&[512], 8192, &[512]);
        check(&[], 8192, &[2048]);
        check(&[1, 64], 8192, &[64]);
        let prefill = |lengths: &[usize]| FixedShapes::for_contexts(&[512]).with_prefill(lengths).prefill;
        assert_eq!(
            (prefill(&[128, 32, 128, 1]), prefill(&[64, 4096]), prefill(&[])),
            (vec![32, 128], vec![64, 512], vec![])
        );
        // Older manifests have a single context.
        let json = serde_json::to_value(FixedShapes::new(64)).unwrap();
        assert!(json.get("shorter").is_none());
        assert_eq!(serde_json::from_value::<FixedShapes>(json).unwrap(), FixedShapes::new(64));
    }
}
