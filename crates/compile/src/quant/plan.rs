//! Storage of each linear weight, planned before weights are read, and serialisable for inspection.

use std::collections::{BTreeMap, HashMap, HashSet};

use narthex_checkpoint::{CheckpointError, IntegerBlocks, WeightSource};
use narthex_spec::{
    BlockSize, Recipe, Scheme,
    arch::{
        Architecture, Component, ConformerTower, DecoderArch, EncoderHead, Projection, Table, WeightRole,
        WeightSpec,
    },
    manifest::SourceWeights,
};
use serde::Serialize;

use super::storage::Storage;
use crate::rotary::RotarySet;

/// Storage of every linear weight and of the tables in blocks, by canonical name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// One entry per weight.
    pub weights: Vec<WeightPlan>,
    /// Index of the entry of each name. A model with experts has tens of thousands.
    #[serde(skip)]
    indices: HashMap<String, usize>,
}

/// Entry of one weight.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WeightPlan {
    /// Canonical name.
    pub name: String,
    /// Rows: outputs of the linear layer.
    pub rows: usize,
    /// Columns: inputs of the linear layer.
    pub cols: usize,
    /// Its storage.
    pub storage: Storage,
    /// Encoding in the checkpoint, if the storage depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<&'static str>,
    /// Part of the model.
    #[serde(skip)]
    pub component: Component,
    /// Number of its layer; `None` outside layers.
    #[serde(skip)]
    pub layer: Option<usize>,
    /// True for a weight of one of several experts.
    #[serde(skip)]
    pub is_expert: bool,
}

impl WeightPlan {
    /// Creates the entry of a matrix.
    fn new(weight: &WeightSpec, storage: Storage, block: BlockSize) -> Option<Self> {
        let &[rows, cols] = weight.shape.as_slice() else { return None };
        let name = &weight.name;
        // Qualcomm's backend takes whole blocks only, and the inner width of SigLIP, 4304, is no multiple of 32.
        let is_padded = name.component != Component::Text && !cols.is_multiple_of(block.operator_block(cols));
        let has_no_blocks = is_padded || !block.divides(cols);
        Some(Self {
            name: name.to_string(),
            rows,
            cols,
            storage: if storage.plain().is_none() && has_no_blocks { Storage::F16 } else { storage },
            source: None,
            component: name.component,
            layer: name.layer,
            is_expert: matches!(weight.role, WeightRole::Expert(_)),
        })
    }

    /// Returns the size in bytes of the weight with its scales and zero points, in blocks of this size.
    pub fn bytes(&self, block: BlockSize) -> u64 {
        let rows = self.rows as u64;
        let cols = self.cols as u64;
        let blocks = cols.div_ceil(block.operator_block(self.cols).max(1) as u64);
        rows * match self.storage {
            Storage::F32 => cols * 4,
            Storage::F16 => cols * 2,
            Storage::W8 | Storage::W8Copied => cols + blocks * 2,
            Storage::W8Zeros => cols + blocks * 3,
            Storage::W8Offsets => cols + blocks * 4,
            Storage::W4 | Storage::W4Copied => cols.div_ceil(2) + blocks * 2 + blocks.div_ceil(2),
            Storage::W4Symmetric | Storage::W4SymmetricCopied => cols.div_ceil(2) + blocks * 2,
            Storage::W4Offsets => cols.div_ceil(2) + blocks * 4,
        }
    }
}

impl Plan {
    /// Creates the plan of a recipe for an architecture.
    pub fn new(architecture: &Architecture, recipe: &Recipe) -> Self {
        let choice = StorageChoice::new(architecture, recipe);
        let weights = architecture.weights();
        let planned = weights.iter().filter_map(|weight| {
            choice.storage(weight).and_then(|storage| WeightPlan::new(weight, storage, recipe.block))
        });
        let weights: Vec<WeightPlan> = planned.collect();
        let indices = weights.iter().enumerate().map(|(at, planned)| (planned.name.clone(), at)).collect();
        Self { weights, indices }
    }

    /// Creates the plan of a recipe for a checkpoint's weights.
    ///
    /// In `w4` and `w4a16`, the blocks of a checkpoint whose layers have 4 bits are not rounded again, and layers with more
    /// bits keep them. Graphs of `w4` for NPUs have blocks of one kind.
    pub(crate) fn of_source(
        architecture: &Architecture,
        recipe: &Recipe,
        weights: &dyn WeightSource,
    ) -> Result<Self, CheckpointError> {
        let mut plan = Self::new(architecture, recipe);
        let for_npus = recipe.fixed.is_some() || !recipe.targets.is_empty();
        let block = BlockSize::Elements(IntegerBlocks::ELEMENTS);
        let is_copied = match recipe.scheme {
            Scheme::W4 => !for_npus,
            Scheme::W4A16 => true,
            _ => false,
        };
        if !is_copied || recipe.block != block || recipe.symmetric {
            return Ok(plan);
        }

        let mut encodings = Vec::with_capacity(plan.weights.len());
        for planned in &plan.weights {
            encodings.push(weights.weight(&planned.name)?.encoding);
        }
        let has_four_bits = plan
            .weights
            .iter()
            .zip(&encodings)
            .any(|(planned, encoding)| planned.storage == Storage::W4 && encoding.bits() == 4);
        if has_four_bits {
            // The experts of a layer have one storage, and their operator has no offsets.
            let planned = plan.weights.iter_mut().zip(encodings);
            for (planned, encoding) in planned.filter(|(planned, _)| !planned.is_expert) {
                planned.storage = Storage::of_source(planned.storage, encoding);
                planned.source = Some(encoding.name());
            }
        }
        Ok(plan)
    }

    /// Returns the plan in which weights of 4 bits that are not copied have 8 bits.
    pub(crate) fn with_eight_bits(&self) -> Self {
        let mut plan = self.clone();
        plan.weights.iter_mut().for_each(|planned| planned.storage = planned.storage.with_eight_bits());
        plan
    }

    /// Gives 8 bits to weights of 4 bits that are not copied.
    pub(crate) fn widen(&mut self, names: &[String]) {
        for planned in self.weights.iter_mut().filter(|planned| names.contains(&planned.name)) {
            planned.storage = planned.storage.with_eight_bits();
        }
    }

    /// Returns the weights whose storage depends on the checkpoint, by their encoding.
    pub(crate) fn source_weights(&self) -> Vec<SourceWeights> {
        let mut counts: BTreeMap<(&str, usize, bool), usize> = BTreeMap::new();
        for planned in &self.weights {
            if let Some(encoding) = planned.source {
                let storage = planned.storage;
                *counts.entry((encoding, storage.bits(), storage.is_copied())).or_default() += 1;
            }
        }
        counts
            .into_iter()
            .map(|((encoding, bits, copied), tensors)| SourceWeights {
                encoding: encoding.to_owned(),
                bits,
                copied,
                tensors,
            })
            .collect()
    }

    /// Returns the estimated size in bytes of the weights file: the planned weights, the tables and the convolutions.
    /// Norms, biases, coefficients and padding are not counted.
    pub(crate) fn data_bytes(&self, architecture: &Architecture, recipe: &Recipe) -> u64 {
        let planned: u64 = self.weights.iter().map(|weight| weight.bytes(recipe.block)).sum();
        let element = if recipe.scheme == Scheme::F32 { 4 } else { 2 };
        let unplanned = architecture.weights().into_iter().map(|weight| {
            let bytes = match weight.role {
                WeightRole::Table(Table::Tokens | Table::PerLayer) => element,
                WeightRole::Table(Table::Positions | Table::Segments) | WeightRole::Convolution => 4,
                WeightRole::Norm
                | WeightRole::Bias
                | WeightRole::Coefficients
                | WeightRole::Linear(_)
                | WeightRole::Expert(_) => 0,
            };
            let is_counted = bytes > 0 && self.get(&weight.name.to_string()).is_none();
            if is_counted { weight.elements() * bytes } else { 0 }
        });
        planned + unplanned.sum::<u64>() + computed_bytes(architecture)
    }

    /// Returns the entry of one weight.
    pub fn get(&self, name: &str) -> Option<&WeightPlan> {
        self.weights.get(*self.indices.get(name)?)
    }

    /// Returns the storage of one weight.
    pub fn storage(&self, name: &str) -> Option<Storage> {
        self.get(name).map(|planned| planned.storage)
    }
}

/// The storage of a recipe for weights by their roles.
struct StorageChoice<'a> {
    architecture: &'a Architecture,
    /// Linear layers.
    inner: Storage,
    /// Linear layers of towers and of several residual streams. They have 8 bits in `w4`: they are small compared with the
    /// layers, and their errors reach every answer about a medium, or every stream.
    beside: Storage,
    /// Linear layers that no scheme quantises.
    whole: Storage,
    /// Tables whose rows the host reads, so that their blocks have no zero points.
    rows: Storage,
    block: BlockSize,
}

impl<'a> StorageChoice<'a> {
    fn new(architecture: &'a Architecture, recipe: &Recipe) -> Self {
        let inner = match (recipe.scheme, recipe.is_symmetric()) {
            (Scheme::F32, _) => Storage::F32,
            (Scheme::F16, _) => Storage::F16,
            (Scheme::W8 | Scheme::W8A16 | Scheme::W8A8, false) => Storage::W8Zeros,
            (Scheme::W8 | Scheme::W8A16 | Scheme::W8A8, true) => Storage::W8,
            (Scheme::W4 | Scheme::W4A16, false) => Storage::W4,
            (Scheme::W4 | Scheme::W4A16, true) => Storage::W4Symmetric,
        };
        // The activations of streams, whose scale differs between the variants, and of towers are floats.
        let beside = if recipe.activations.is_some() { Storage::F16 } else { inner.with_eight_bits() };
        let whole = if inner == Storage::F16 { Storage::F16 } else { Storage::F32 };
        let rows = if inner.plain().is_some() { inner } else { Storage::W8 };
        Self { architecture, inner, beside, whole, rows, block: recipe.block }
    }

    /// Returns the storage of a weight; `None` if it is not planned.
    fn storage(&self, weight: &WeightSpec) -> Option<Storage> {
        let is_encoder = matches!(self.architecture, Architecture::Encoder(_));
        let is_tower = matches!(weight.name.component, Component::Vision | Component::Audio);
        match weight.role {
            WeightRole::Linear(projection) => Some(match projection {
                _ if is_tower => self.beside,
                Projection::Stream => self.beside,
                // Errors of the head reach the logits directly, so it keeps 8 bits.
                Projection::Logits if self.has_tied_head() => self.rows,
                Projection::Logits => self.inner.with_eight_bits(),
                // It is small, and its errors change the selection of experts.
                Projection::Router => self.whole,
                // They are small, and the state sums their errors over all tokens.
                Projection::RecurrenceRate => self.whole,
                // The last layers of a head are small, and their errors reach the vector or the scores directly.
                Projection::Embedding | Projection::HeadOutput => self.whole,
                // Activations are rounded to 8 bits wherever weights are quantised, and errors of the value projection
                // reach the vector directly: they are more than half of the distance of all-MiniLM-L6-v2 in `w8` to its
                // reference.
                Projection::Value if is_encoder => self.whole,
                _ => self.inner,
            }),
            WeightRole::Expert(_) => Some(self.expert(weight)),
            WeightRole::Table(Table::Tokens) => self.has_planned_tokens().then_some(self.rows),
            WeightRole::Table(Table::PerLayer) => {
                let cols = weight.shape.last().copied().unwrap_or(0);
                let has_blocks = self.rows.plain().is_none();
                let is_divided = cols.is_multiple_of(self.block.operator_block(cols));
                (has_blocks && is_divided).then_some(self.rows)
            }
            WeightRole::Table(Table::Positions | Table::Segments)
            | WeightRole::Norm
            | WeightRole::Bias
            | WeightRole::Coefficients
            | WeightRole::Convolution => None,
        }
    }

    /// Returns the storage of an expert, which is that of all experts of its layer. ONNX Runtime's operator needs rows of
    /// two or more whole blocks.
    fn expert(&self, weight: &WeightSpec) -> Storage {
        // The number of rows of a projection is the number of columns of another one.
        let blocks = weight.shape.iter().map(|&cols| {
            let block = self.block.operator_block(cols);
            let fits = self.block.divides(cols) && cols.is_multiple_of(block) && cols >= 2 * block;
            fits.then_some(block)
        });
        let blocks: HashSet<Option<usize>> = blocks.collect();
        match self.inner.plain() {
            None if blocks.len() != 1 || blocks.contains(&None) => Storage::F16,
            _ => self.inner,
        }
    }

    fn has_tied_head(&self) -> bool {
        matches!(self.architecture, Architecture::Decoder(arch) if arch.tied_head)
    }

    /// Returns true if the token table is in the plan: it is the weight of a head, was that of a head which is pruned, or
    /// belongs to an embedding model with the layers of a decoder.
    fn has_planned_tokens(&self) -> bool {
        match self.architecture {
            Architecture::Decoder(arch) => {
                arch.tied_head && (arch.kept_tokens.is_none() || self.rows.plain().is_none())
            }
            Architecture::Encoder(arch) => matches!(arch.head, EncoderHead::MaskedLm { .. }),
            Architecture::Embedder(_) | Architecture::Speech(_) => true,
        }
    }
}

/// Returns the size in bytes of tensors that a compile computes: cosines and sines, and keys of relative positions.
fn computed_bytes(architecture: &Architecture) -> u64 {
    match architecture {
        Architecture::Decoder(arch) => {
            angle_bytes(arch) + arch.audio.as_deref().map_or(0, relative_key_bytes)
        }
        Architecture::Embedder(arch) => angle_bytes(&arch.decoder),
        Architecture::Encoder(arch) => {
            arch.rope.as_ref().map_or(0, |rope| (arch.positions * rope.dims * 4) as u64)
        }
        Architecture::Speech(_) => 0,
    }
}

/// Returns the size in bytes of the keys of a tower's relative positions.
fn relative_key_bytes(tower: &ConformerTower) -> u64 {
    (tower.layers * tower.hidden * (tower.left + tower.right + 1) * 4) as u64
}

/// Returns the size in bytes of a decoder's cosines and sines.
fn angle_bytes(arch: &DecoderArch) -> u64 {
    let extents = RotarySet::ALL.into_iter().filter_map(|set| set.extents(arch));
    extents.map(|[positions, pairs]| positions as u64 * (pairs * 8) as u64).sum()
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::{
        Activation, Attention, Connector, DecoderLayer, EncoderArch, EncoderNorm, Experts, Family,
        FeedForward, Mixer, PatchTower, Pooling, VisionArch,
    };
    use narthex_testkit::architecture as example;

    use super::*;

    fn decoder(tied_head: bool) -> Architecture {
        Architecture::Decoder(DecoderArch {
            vocab: 100,
            layers: vec![DecoderLayer {
                mixer: Mixer::Attention(Attention::plain(4, 2, 8)),
                ..example::layer()
            }],
            tied_head,
            ..example::llama()
        })
    }

    fn encoder() -> Architecture {
        Architecture::Encoder(EncoderArch {
            family: Family::Bert,
            vocab: 100,
            hidden: 64,
            positions: 32,
            first_position: 0,
            types: 2,
            layers: 1,
            heads: 4,
            inner: 96,
            activation: Activation::Gelu,
            gated: false,
            biases: true,
            rope: None,
            norm: EncoderNorm::Layer,
            norm_epsilon: 1e-12,
            factored: None,
            bottleneck: None,
            head: EncoderHead::Embedding { pooling: Pooling::Mean, normalize: true },
        })
    }

    fn check(architecture: &Architecture, scheme: Scheme, expect: &[(&str, usize, usize, Storage)]) {
        let plan = Plan::new(architecture, &Recipe::new(scheme));
        let found: Vec<_> =
            plan.weights.iter().map(|w| (w.name.as_str(), w.rows, w.cols, w.storage)).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn decoders_keep_8_bits_in_the_head() {
        use Storage::{F32, W4, W8, W8Zeros};
        let layer = |storage| {
            vec![
                ("layers.0.attn.q_proj.weight", 32, 64, storage),
                ("layers.0.attn.k_proj.weight", 16, 64, storage),
                ("layers.0.attn.v_proj.weight", 16, 64, storage),
                ("layers.0.attn.o_proj.weight", 64, 32, storage),
                ("layers.0.mlp.gate_proj.weight", 96, 64, storage),
                ("layers.0.mlp.up_proj.weight", 96, 64, storage),
                ("layers.0.mlp.down_proj.weight", 64, 96, storage),
            ]
        };
        for (scheme, inner, tied, own) in
            [(Scheme::F32, F32, F32, F32), (Scheme::W8, W8Zeros, W8, W8Zeros), (Scheme::W4, W4, W8, W8Zeros)]
        {
            let table = ("embed.weight", 100, 64, tied);
            check(&decoder(true), scheme, &[vec![table], layer(inner)].concat());
            let head = ("head.weight", 100, 64, own);
            check(&decoder(false), scheme, &[layer(inner), vec![head]].concat());
            let Architecture::Decoder(arch) = decoder(true) else { panic!("no decoder") };
            let pruned = Architecture::Decoder(DecoderArch { kept_tokens: Some(30), ..arch });
            let table = if tied == W8 { vec![table] } else { Vec::new() };
            let head = ("head.weight", 30, 64, tied);
            check(&pruned, scheme, &[table, layer(inner), vec![head]].concat());
        }
    }

    #[test]
    fn experts_of_a_layer_have_one_storage() {
        let Architecture::Decoder(arch) = decoder(false) else { panic!("no decoder") };
        let check = |inner, block, scheme, expected| {
            let mut arch = arch.clone();
            arch.layers[0].feed_forward = FeedForward::Experts(Experts { inner, ..example::experts() });
            let recipe = Recipe { block, ..Recipe::new(scheme) };
            let plan = Plan::new(&Architecture::Decoder(arch), &recipe);
            let mut experts = plan.weights.iter().filter(|weight| weight.is_expert);
            assert!(experts.all(|weight| weight.storage == expected), "{inner} {block} {scheme}");
            assert_eq!(plan.weights.iter().filter(|weight| weight.is_expert).count(), 12);
            let router = plan.storage("layers.0.mlp.router.weight");
            assert_eq!(router, Some(if scheme == Scheme::F16 { Storage::F16 } else { Storage::F32 }));
        };
        let block = BlockSize::Elements(32);
        check(64, block, Scheme::F32, Storage::F32);
        check(64, block, Scheme::F16, Storage::F16);
        check(64, block, Scheme::W8, Storage::W8Zeros);
        check(64, block, Scheme::W4, Storage::W4);
        // One block, and a part of one.
        check(32, block, Scheme::W4, Storage::F16);
        check(80, block, Scheme::W4, Storage::F16);
        // Blocks of 32 and of 16.
        check(48, BlockSize::Channel, Scheme::W8, Storage::F16);
    }

    #[test]
    fn weights_with_one_scale_per_row_have_no_zero_points() {
        let Architecture::Decoder(arch) = decoder(false) else { panic!("no decoder") };
        let mut narrow = arch.clone();
        narrow.layers[0].mlp_mut().unwrap().inner = 40;
        let channel = |scheme| Recipe { block: BlockSize::Channel, ..Recipe::new(scheme) };
        let storages = |arch: &DecoderArch, scheme| {
            let plan = Plan::new(&Architecture::Decoder(arch.clone()), &channel(scheme));
            plan.weights.iter().map(|weight| weight.storage).collect::<Vec<_>>()
        };
        assert_eq!(storages(&arch, Scheme::W8), [Storage::W8; 8]);
        let four = [vec![Storage::W4Symmetric; 7], vec![Storage::W8]].concat();
        assert_eq!(storages(&arch, Scheme::W4), four);
        // Rows of 40 elements would need padding.
        assert_eq!(storages(&narrow, Scheme::W8)[6], Storage::F16);
        assert_eq!(storages(&arch, Scheme::F32), [Storage::F32; 8]);
    }

    #[test]
    fn encoders_keep_their_values_whole() {
        let layer = |inner| {
            [
                ("layers.0.attn.q_proj.weight", 64, 64, inner),
                ("layers.0.attn.k_proj.weight", 64, 64, inner),
                ("layers.0.attn.v_proj.weight", 64, 64, Storage::F32),
                ("layers.0.attn.o_proj.weight", 64, 64, inner),
                ("layers.0.mlp.up_proj.weight", 96, 64, inner),
                ("layers.0.mlp.down_proj.weight", 64, 96, inner),
            ]
        };
        check(&encoder(), Scheme::W8, &layer(Storage::W8Zeros));
        check(&encoder(), Scheme::W4, &layer(Storage::W4));
    }
    #[test]
    fn heads_stay_whole_but_for_a_vocabulary() {
        let check = |head: EncoderHead, expect: &[(&str, Storage)]| {
            let Architecture::Encoder(arch) = encoder() else { panic!("no encoder") };
            let plan =
                Plan::new(&Architecture::Encoder(EncoderArch { head, ..arch }), &Recipe::new(Scheme::W4));
            let outside = plan.weights.iter().filter(|weight| weight.layer.is_none());
            let found: Vec<_> = outside.map(|w| (w.name.as_str(), w.storage)).collect();
            assert_eq!(found, expect);
        };
        let dense = ("score.dense.weight", Storage::W4);
        let out = ("score.out.weight", Storage::F32);
        check(EncoderHead::Score { labels: 1, dense: Some(Activation::Tanh) }, &[dense, out]);
        check(EncoderHead::Spans {}, &[("spans.weight", Storage::F32)]);
        check(EncoderHead::Tokens { labels: 9 }, &[("tokens.weight", Storage::F32)]);
        let logits = [("embed.word.weight", Storage::W8), ("mlm.dense.weight", Storage::W4)];
        check(EncoderHead::MaskedLm { activation: Some(Activation::Gelu) }, &logits);
    }

    #[test]
    fn towers_have_8_bits_in_every_scheme_of_4() {
        let tower = PatchTower {
            side: 16,
            patch: 4,
            hidden: 64,
            layers: 1,
            heads: 4,
            inner: 96,
            activation: Activation::Gelu,
            norm_epsilon: 1e-6,
            connector: Connector::PixelShuffle { factor: 2 },
        };
        let Architecture::Decoder(arch) = decoder(true) else { panic!("no decoder") };
        let arch = DecoderArch { vision: Some(Box::new(VisionArch::Patches(tower))), ..arch };
        let arch = Architecture::Decoder(arch);
        let check = |recipe: Recipe, expect: Storage| {
            let plan = Plan::new(&arch, &recipe);
            let tower = ["vision.layers.0.mlp.up_proj.weight", "connector.linear.weight"];
            assert_eq!(tower.map(|name| plan.storage(name)), [Some(expect); 2], "{recipe:?}");
        };
        check(Recipe::new(Scheme::W4), Storage::W8Zeros);
        check(Recipe { symmetric: true, ..Recipe::new(Scheme::W4) }, Storage::W8);
        check(Recipe::new(Scheme::W8), Storage::W8Zeros);
        check(Recipe::new(Scheme::W4A16), Storage::F16);
    }

    #[test]
    fn source_weights_have_the_bits_of_their_storage() {
        let weight = |storage, source| WeightPlan {
            is_expert: false,
            name: "layers.0.mlp.up_proj.weight".to_owned(),
            rows: 64,
            cols: 40,
            storage,
            source: Some(source),
            component: Component::Text,
            layer: Some(0),
        };
        let weights = vec![
            weight(Storage::F16, "F32"),
            weight(Storage::F32, "F32"),
            weight(Storage::W4Copied, "Q4_0"),
            weight(Storage::W8Zeros, "Q6_K"),
        ];
        let found: Vec<_> = Plan { weights, indices: HashMap::new() }
            .source_weights()
            .into_iter()
            .map(|weights| (weights.encoding, weights.bits))
            .collect();
        let expected = [("F32", 16), ("F32", 32), ("Q4_0", 4), ("Q6_K", 8)];
        assert_eq!(found, expected.map(|(encoding, bits)| (encoding.to_owned(), bits)));
    }
}
