//! Storage of each linear weight, planned before weights are read, and serialisable for inspection.

use std::collections::BTreeMap;

use narthex_checkpoint::{CheckpointError, IntegerBlocks, WeightSource};
use narthex_spec::{
    BlockSize, Recipe, Scheme,
    arch::{
        Architecture, BottleneckAttention, DecoderArch, EmbedderArch, EncoderArch, EncoderHead, KvSource,
        PerLayer, SpeechArch,
    },
    manifest::SourceWeights,
};
use serde::Serialize;

use super::{
    storage::Storage,
    towers::{self, TowerWeight},
};
use crate::rotary::RotarySet;

/// Storage of every linear weight and of the per-layer table, by canonical name, in the order in which they are
/// written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// One entry per weight.
    pub weights: Vec<WeightPlan>,
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
    /// True for a weight of a tower or of a speech model, whose blocks are whole.
    #[serde(skip)]
    pub is_tower: bool,
}

impl WeightPlan {
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
    /// Creates the plan of a recipe for an architecture. In `w4`, the head keeps 8 bits, because its errors reach the
    /// logits directly. A head that shares its weight with the token table has no zero points, so that the host can
    /// read its rows.
    pub fn new(architecture: &Architecture, recipe: &Recipe) -> Self {
        let inner = match (recipe.scheme, recipe.is_symmetric()) {
            (Scheme::F32, _) => Storage::F32,
            (Scheme::F16, _) => Storage::F16,
            (Scheme::W8 | Scheme::W8A16 | Scheme::W8A8, false) => Storage::W8Zeros,
            (Scheme::W8 | Scheme::W8A16 | Scheme::W8A8, true) => Storage::W8,
            (Scheme::W4 | Scheme::W4A16, false) => Storage::W4,
            (Scheme::W4 | Scheme::W4A16, true) => Storage::W4Symmetric,
        };
        // The activations of streams, whose scale differs between the variants, and of towers are floats.
        let beside = if recipe.activations.is_some() { Storage::F16 } else { inner };
        let mut plan = Self { weights: Vec::new() };
        match architecture {
            Architecture::Decoder(arch) => {
                plan.decoder(arch, inner);
                plan.streams(arch, beside);
                plan.head(arch, inner);
                plan.per_layer_table(arch, recipe);
                if let Some(vision) = &arch.vision {
                    plan.tower(towers::vision_weights(vision, arch.hidden), beside);
                }
                if let Some(audio) = &arch.audio {
                    plan.tower(towers::audio_weights(audio, arch.hidden), beside);
                }
            }
            Architecture::Encoder(arch) => plan.encoder(arch, inner),
            Architecture::Embedder(arch) => {
                plan.decoder(&arch.decoder, inner);
                plan.embedder(arch, inner);
            }
            Architecture::Speech(arch) => plan.speech(arch, inner),
        }
        for planned in &mut plan.weights {
            // Qualcomm's backend takes whole blocks only, and the inner width of SigLIP, 4304, is no multiple of 32.
            let block = recipe.block.operator_block(planned.cols);
            let is_padded = planned.is_tower && !planned.cols.is_multiple_of(block);
            if planned.storage.plain().is_none() && (is_padded || !recipe.block.divides(planned.cols)) {
                planned.storage = Storage::F16;
            }
        }
        plan
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
            for (planned, encoding) in plan.weights.iter_mut().zip(encodings) {
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

    /// Returns the estimated size in bytes of the weights file: the planned weights and the tables. Norms, biases and
    /// padding are not counted.
    pub(crate) fn data_bytes(&self, architecture: &Architecture, recipe: &Recipe) -> u64 {
        let planned: u64 = self.weights.iter().map(|weight| weight.bytes(recipe.block)).sum();
        let table = |name: &str, rows: usize, cols: usize, bytes: usize| match self.get(name) {
            Some(_) => 0,
            None => rows as u64 * (cols * bytes) as u64,
        };
        let element = if recipe.scheme == Scheme::F32 { 4 } else { 2 };

        planned
            + match architecture {
                Architecture::Decoder(arch) => {
                    let positions = if arch.learned_positions() { arch.context } else { 0 };
                    let per_layer = arch.per_layer.as_ref().map_or(0, |per_layer| {
                        let cols = arch.layers.len() * per_layer.width;
                        table("per_layer.embed.weight", per_layer.vocab, cols, element)
                    });
                    let tokens = table("embed.weight", arch.vocab, arch.hidden, element);
                    tokens
                        + arch.vision.as_deref().map_or(0, towers::convolution_bytes)
                        + arch.audio.as_deref().map_or(0, towers::audio_convolution_bytes)
                        + table("position.weight", positions, arch.hidden, 4)
                        + per_layer
                        + angle_bytes(arch)
                }
                Architecture::Embedder(arch) => angle_bytes(&arch.decoder),
                Architecture::Encoder(arch) => {
                    let tokens = table("embed.word.weight", arch.vocab, arch.token_width(), element);
                    let positions = match &arch.rope {
                        Some(rope) => (arch.positions * rope.dims * 4) as u64,
                        None => table("embed.position.weight", arch.positions, arch.hidden, 4),
                    };
                    tokens + positions + table("embed.type.weight", arch.types, arch.hidden, 4)
                }
                Architecture::Speech(arch) => {
                    let convolved = SpeechArch::KERNEL * (arch.bins + arch.hidden);
                    let positions = arch.source_positions + arch.target_positions;
                    let tokens = table("embed.weight", arch.vocab, arch.hidden, element);
                    tokens + (arch.hidden * (convolved + positions) * 4) as u64
                }
            }
    }

    fn push(&mut self, name: String, rows: usize, cols: usize, storage: Storage) {
        self.weights.push(WeightPlan { name, rows, cols, storage, source: None, is_tower: false });
    }

    fn decoder(&mut self, arch: &DecoderArch, inner: Storage) {
        for (index, layer) in arch.layers.iter().enumerate() {
            let scope = format!("layers.{index}");
            let a = &layer.attention;
            let q = a.heads * a.head_size;
            let kv = a.kv_heads * a.head_size;
            self.push(format!("{scope}.attn.q_proj.weight"), q, arch.hidden, inner);
            if a.kv == KvSource::Own {
                self.push(format!("{scope}.attn.k_proj.weight"), kv, arch.hidden, inner);
                self.push(format!("{scope}.attn.v_proj.weight"), kv, arch.hidden, inner);
            }
            self.push(format!("{scope}.attn.o_proj.weight"), arch.hidden, q, inner);
            if layer.mlp.gated {
                self.push(format!("{scope}.mlp.gate_proj.weight"), layer.mlp.inner, arch.hidden, inner);
            }
            self.push(format!("{scope}.mlp.up_proj.weight"), layer.mlp.inner, arch.hidden, inner);
            self.push(format!("{scope}.mlp.down_proj.weight"), arch.hidden, layer.mlp.inner, inner);
        }
    }

    /// Plans the head, and the token table if that is no longer the head's weight.
    fn head(&mut self, arch: &DecoderArch, inner: Storage) {
        let head = match (arch.tied_head, inner) {
            (_, Storage::F32 | Storage::F16) => inner,
            (false, _) => inner.with_eight_bits(),
            (true, _) => Storage::W8,
        };
        self.push(arch.head_weight().to_owned(), arch.head_rows(), arch.hidden, head);

        // If the head is pruned, the table is not.
        if arch.tied_head && arch.kept_tokens.is_some() && head.plain().is_none() {
            self.push("embed.weight".to_owned(), arch.vocab, arch.hidden, head);
        }
    }

    /// Plans the per-layer table, whose rows the host reads, if blocks divide its rows.
    fn per_layer_table(&mut self, arch: &DecoderArch, recipe: &Recipe) {
        let Some(PerLayer { vocab, width }) = arch.per_layer else { return };
        let cols = arch.layers.len() * width;
        let has_blocks = !matches!(recipe.scheme, Scheme::F32 | Scheme::F16);
        if has_blocks && cols.is_multiple_of(recipe.block.operator_block(cols)) {
            self.push("per_layer.embed.weight".to_owned(), vocab, cols, Storage::W8);
        }
    }

    /// Plans the weights that combine several streams. They are small compared with the layers, and have 8 bits in
    /// `w4`, because their errors reach every stream.
    fn streams(&mut self, arch: &DecoderArch, inner: Storage) {
        let layers = arch.layers.len();
        let hidden = arch.hidden;
        let storage = inner.with_eight_bits();
        if let Some(altup) = &arch.altup {
            for other in 0..altup.streams.saturating_sub(1) {
                self.push(format!("altup.proj.{other}.weight"), hidden, hidden, storage);
                self.push(format!("altup.unembed.{other}.weight"), hidden, hidden, storage);
            }
            for index in 0..layers {
                self.push(format!("layers.{index}.laurel.left.weight"), altup.rank, hidden, storage);
                self.push(format!("layers.{index}.laurel.right.weight"), hidden, altup.rank, storage);
            }
        }
        if let Some(PerLayer { width, .. }) = arch.per_layer {
            self.push("per_layer.proj.weight".to_owned(), layers * width, hidden, storage);
            for index in 0..layers {
                self.push(format!("layers.{index}.per_layer.gate.weight"), width, hidden, storage);
                self.push(format!("layers.{index}.per_layer.proj.weight"), hidden, width, storage);
            }
        }
    }

    /// Plans the linear weights of a tower. They have 8 bits in `w4`, because their errors reach every answer about a medium, and
    /// towers are small compared with the decoder. Convolutions, as the embedding of patches, are not quantised.
    fn tower(&mut self, weights: Vec<TowerWeight>, inner: Storage) {
        let storage = inner.with_eight_bits();
        self.weights.extend(weights.into_iter().map(|TowerWeight { name, rows, cols }| WeightPlan {
            name,
            rows,
            cols,
            storage,
            source: None,
            is_tower: true,
        }));
    }

    /// Plans both sides and the head, which shares its weight with the token table. Convolutions are not quantised.
    fn speech(&mut self, arch: &SpeechArch, inner: Storage) {
        let hidden = arch.hidden;
        for (side, layers) in [("encoder", arch.encoder), ("decoder", arch.decoder)] {
            let attentions: &[&str] = if side == "encoder" { &["attn"] } else { &["attn", "cross"] };
            for index in 0..layers.layers {
                let scope = format!("{side}.layers.{index}");
                for attention in attentions {
                    for part in ["q", "k", "v", "o"] {
                        self.push(format!("{scope}.{attention}.{part}_proj.weight"), hidden, hidden, inner);
                    }
                }
                self.push(format!("{scope}.mlp.up_proj.weight"), layers.inner, hidden, inner);
                self.push(format!("{scope}.mlp.down_proj.weight"), hidden, layers.inner, inner);
            }
        }
        let head = if inner.plain().is_some() { inner } else { Storage::W8 };
        self.push("embed.weight".to_owned(), arch.vocab, hidden, head);
        self.weights.iter_mut().for_each(|planned| planned.is_tower = true);
    }

    /// Plans the token table, whose rows the host reads, and the linear layers between pooling and vector, whose errors reach
    /// the vector directly.
    fn embedder(&mut self, arch: &EmbedderArch, inner: Storage) {
        let table = if inner.plain().is_some() { inner } else { Storage::W8 };
        self.push("embed.weight".to_owned(), arch.decoder.vocab, arch.decoder.hidden, table);
        for (index, [rows, cols]) in arch.dense_shapes().enumerate() {
            self.push(format!("dense.{index}.weight"), rows, cols, unquantised(inner));
        }
    }

    fn encoder(&mut self, arch: &EncoderArch, inner: Storage) {
        let hidden = arch.hidden;
        let inside = arch.inside();
        let whole = unquantised(inner);
        if let Some(factored) = &arch.factored {
            self.push("embed.project.weight".to_owned(), hidden, factored.input(), whole);
        }

        for index in 0..arch.layers {
            let scope = format!("layers.{index}");
            let read = arch.attention_reads();
            if let Some(bottleneck) = &arch.bottleneck {
                self.push(format!("{scope}.bottleneck.input.weight"), inside, hidden, inner);
                if bottleneck.attention == BottleneckAttention::Shared {
                    self.push(format!("{scope}.bottleneck.attn.weight"), inside, hidden, inner);
                }
            }
            // Activations are rounded to 8 bits wherever weights are quantised, and errors of the value projection
            // reach the vector directly: they are more than half of the distance of all-MiniLM-L6-v2 in `w8` to its
            // reference.
            let parts = [("q", read[0], inner), ("k", read[0], inner), ("v", read[1], whole)];
            for (part, cols, storage) in parts.into_iter().chain([("o", inside, inner)]) {
                self.push(format!("{scope}.attn.{part}_proj.weight"), inside, cols, storage);
            }
            let others = (0..arch.early_feed_forwards()).map(|part| format!("ffn.{part}"));
            for part in others.chain(["mlp".to_owned()]) {
                if arch.gated {
                    self.push(format!("{scope}.{part}.gate_proj.weight"), arch.inner, inside, inner);
                }
                self.push(format!("{scope}.{part}.up_proj.weight"), arch.inner, inside, inner);
                self.push(format!("{scope}.{part}.down_proj.weight"), inside, arch.inner, inner);
            }
            if arch.bottleneck.is_some() {
                self.push(format!("{scope}.bottleneck.output.weight"), hidden, inside, inner);
            }
        }
        self.encoder_head(arch, inner);
    }

    /// Plans the head. The last layers of a head are small and not quantised; a head over the vocabulary keeps 8 bits.
    fn encoder_head(&mut self, arch: &EncoderArch, inner: Storage) {
        let hidden = arch.hidden;
        let whole = unquantised(inner);
        match arch.head {
            EncoderHead::Embedding { .. } => {}
            EncoderHead::Score { labels, dense } => {
                if dense.is_some() {
                    self.push("score.dense.weight".to_owned(), hidden, hidden, inner);
                }
                self.push("score.out.weight".to_owned(), labels, hidden, whole);
            }
            EncoderHead::Spans {} => self.push("spans.weight".to_owned(), 2, hidden, whole),
            EncoderHead::MaskedLm { .. } => {
                self.push("mlm.dense.weight".to_owned(), hidden, hidden, inner);
                let storage = if inner.plain().is_some() { inner } else { Storage::W8 };
                self.push("embed.word.weight".to_owned(), arch.vocab, arch.token_width(), storage);
            }
        }
    }

    /// Returns the entry of one weight.
    pub fn get(&self, name: &str) -> Option<&WeightPlan> {
        self.weights.iter().find(|planned| planned.name == name)
    }

    /// Returns the storage of one weight.
    pub fn storage(&self, name: &str) -> Option<Storage> {
        self.get(name).map(|planned| planned.storage)
    }
}

/// Returns the storage of a weight that no scheme quantises.
fn unquantised(inner: Storage) -> Storage {
    if inner == Storage::F16 { Storage::F16 } else { Storage::F32 }
}

/// Returns the size in bytes of a decoder's cosines and sines.
fn angle_bytes(arch: &DecoderArch) -> u64 {
    let extents = RotarySet::ALL.into_iter().filter_map(|set| set.extents(arch));
    extents.map(|[positions, pairs]| positions as u64 * (pairs * 8) as u64).sum()
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::{
        Activation, Attention, Connector, DecoderLayer, EncoderNorm, Family, PatchTower, Pooling, VisionArch,
    };
    use narthex_testkit::architecture as example;

    use super::*;

    fn decoder(tied_head: bool) -> Architecture {
        Architecture::Decoder(DecoderArch {
            vocab: 100,
            layers: vec![DecoderLayer { attention: Attention::plain(4, 2, 8), ..example::layer() }],
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
            let with = |head| [layer(inner), vec![head]].concat();
            check(&decoder(true), scheme, &with(("embed.weight", 100, 64, tied)));
            check(&decoder(false), scheme, &with(("head.weight", 100, 64, own)));
            let Architecture::Decoder(arch) = decoder(true) else { panic!("no decoder") };
            let pruned = Architecture::Decoder(DecoderArch { kept_tokens: Some(30), ..arch });
            let table = (tied == W8).then_some(("embed.weight", 100, 64, W8));
            let head = [with(("head.weight", 30, 64, tied)), table.into_iter().collect()].concat();
            check(&pruned, scheme, &head);
        }
    }

    #[test]
    fn weights_with_one_scale_per_row_have_no_zero_points() {
        let Architecture::Decoder(arch) = decoder(false) else { panic!("no decoder") };
        let mut narrow = arch.clone();
        narrow.layers[0].mlp.inner = 40;
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
            let found: Vec<_> = plan.weights[6..].iter().map(|w| (w.name.as_str(), w.storage)).collect();
            assert_eq!(found, expect);
        };
        let dense = ("score.dense.weight", Storage::W4);
        let out = ("score.out.weight", Storage::F32);
        check(EncoderHead::Score { labels: 1, dense: Some(Activation::Tanh) }, &[dense, out]);
        check(EncoderHead::Spans {}, &[("spans.weight", Storage::F32)]);
        let logits = [("mlm.dense.weight", Storage::W4), ("embed.word.weight", Storage::W8)];
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
            name: "layers.0.mlp.up_proj.weight".to_owned(),
            rows: 64,
            cols: 40,
            storage,
            source: Some(source),
            is_tower: false,
        };
        let weights = vec![
            weight(Storage::F16, "F32"),
            weight(Storage::F32, "F32"),
            weight(Storage::W4Copied, "Q4_0"),
            weight(Storage::W8Zeros, "Q6_K"),
        ];
        let found: Vec<_> = Plan { weights }
            .source_weights()
            .into_iter()
            .map(|weights| (weights.encoding, weights.bits))
            .collect();
        let expected = [("F32", 16), ("F32", 32), ("Q4_0", 4), ("Q6_K", 8)];
        assert_eq!(found, expected.map(|(encoding, bits)| (encoding.to_owned(), bits)));
    }
}
