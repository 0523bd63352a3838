//! A decoder in graphs of fixed shapes: implements the engine's [`Executor`], one span after another.

use std::{collections::BTreeMap, ops::Range, path::Path};

use narthex_engine::{
    executor::{
        Executor, KvBlock, KvCopy, KvLimits, KvRows, Limits, Logits, Span, StepError, StepPlan, check_read,
        check_truncate,
    },
    position::Position,
};
use narthex_spec::{
    SlotId,
    arch::{DecoderArch, Structure, VisionArch},
    manifest::{KvLayout, Manifest, Part, Slot, TableRole},
};

use super::{
    DecoderLoad,
    cache::StaticKvCache,
    graph::StaticGraph,
    layers::{Layers, in_order, run_parts},
    open,
    step::{AngleInputs, Tables, TokenRun},
};
use crate::{
    error::DeviceError,
    placement::GraphPlacement,
    rope_switch::{RopeFactors, RopeSwitch},
    runtime::Runtime,
    table::{Embedding, LONG, SHORT, Table, pair},
    vocab_subset::VocabSubset,
};

/// Bounds of an executor.
#[derive(Debug, Clone, Copy)]
pub struct StaticOptions {
    /// Number of slots.
    pub slots: usize,
    /// Maximum size of the KV cache in bytes.
    pub kv_budget: usize,
}

/// A decoder in graphs of fixed shapes, on one device or with its head on another.
pub struct StaticExecutor {
    limits: Limits,
    tables: Tables,
    switch: RopeSwitch,
    layers: Layers,
    head: StaticGraph,
    kept: VocabSubset,
    kv: Vec<KvLayout>,
    logits: Vec<f32>,
    /// Number of rows of logits of the last step.
    logits_rows: usize,
    /// Rows of a picture, if they attend to each other in both directions.
    picture_rows: Option<usize>,
    // Declared after the graphs that are bound to it, so that it is dropped after them.
    cache: StaticKvCache,
}

impl StaticExecutor {
    /// Loads a package's decoder of fixed shapes on one device, or its layers and its head on two.
    ///
    /// # Errors
    /// [`DeviceError::Package`] and [`DeviceError::Read`] for a package without such a decoder,
    /// [`DeviceError::NotWhole`] for a graph that does not run on the device as a whole, [`DeviceError::Ort`] for a
    /// graph that ONNX Runtime refuses.
    pub fn open<'a>(
        runtime: &Runtime,
        folder: &Path,
        manifest: &Manifest,
        places: impl Into<DecoderLoad<'a>>,
        options: &StaticOptions,
    ) -> Result<Self, DeviceError> {
        let Structure::Decoder(arch) = &manifest.architecture else {
            return Err(DeviceError::package("a decoder", "an encoder"));
        };
        if options.slots == 0 {
            return Err(DeviceError::Option { what: "slots" });
        }

        let tables = tables(folder, manifest, arch)?;
        let places = places.into();
        let mut layers = Layers::new();
        let mut kv = BTreeMap::new();
        let mut head = None;
        for entry in &manifest.graphs {
            match entry.part {
                Part::Layers { tokens, past, .. } => {
                    let session = open(runtime, folder, manifest, entry, places.layers)?;
                    let graph = StaticGraph::new(entry, session)?;
                    kv.extend(graph.layers().zip(entry.kv.iter().cloned()));
                    layers.entry(past).or_default().entry(tokens).or_default().push(graph);
                }
                Part::Head { .. } => {
                    let session = open(runtime, folder, manifest, entry, places.head)?;
                    head = Some(StaticGraph::new(entry, session)?);
                }
                Part::Whole
                | Part::Chunk { .. }
                | Part::Bucket { .. }
                | Part::Encoder
                | Part::Decoder
                | Part::Vision
                | Part::Audio => {}
            }
        }

        let (Some((&past, longest)), Some(head)) = (layers.last_key_value(), head) else {
            return Err(DeviceError::package("a decoder in fixed graphs", "none"));
        };

        let chunk = longest.keys().next_back().copied().unwrap_or(1);
        let kept = VocabSubset::open(folder, manifest, arch)?;
        let given = head.output(Slot::Logits).len();
        if given != kept.width() {
            return Err(DeviceError::package(format!("a head of {} tokens", kept.width()), given));
        }
        if let Some(past) =
            layers.iter().find_map(|(past, graphs)| (!graphs.contains_key(&1)).then_some(past))
        {
            return Err(DeviceError::package(format!("a graph for one token and a past of {past}"), "none"));
        }

        for (tokens, parts) in layers.values_mut().flatten() {
            let entries = arch.kv_index(arch.layers.len());
            in_order(parts, entries, tokens.saturating_mul(arch.hidden))?;
        }

        let kv: Vec<KvLayout> = kv.into_values().collect();
        let bytes_per_token = kv.iter().map(KvLayout::bytes_per_token).sum();
        let limits = Limits {
            slots: options.slots,
            context: past.min(manifest.max_length),
            chunk,
            batch: options.slots,
            vocab: arch.vocab,
            kv: KvLimits { bytes_per_token, bytes_per_slot: 0, step: past, budget: options.kv_budget },
        };

        let cache = StaticKvCache::new(&kv, past, options.slots);
        let switch = RopeSwitch::of(arch, &limits);
        let logits = Vec::new();
        let vision = arch.vision.as_deref().filter(|vision| vision.is_bidirectional());
        Ok(Self {
            limits,
            tables,
            switch,
            layers,
            head,
            kept,
            kv,
            logits,
            logits_rows: 0,
            cache,
            picture_rows: vision.map(VisionArch::rows),
        })
    }

    /// Returns the placement of the nodes of each graph.
    pub fn placements(&self) -> Vec<GraphPlacement> {
        let graphs = self.layers.values().flat_map(BTreeMap::values).flatten().chain([&self.head]);
        graphs.map(StaticGraph::placement).collect()
    }

    /// Returns the number of tokens in a slot.
    fn held(&self, slot: SlotId) -> Result<usize, StepError> {
        self.limits.check_slot(slot)?;
        Ok(self.cache.length(slot))
    }

    /// Returns the number of past columns of the smallest graphs that hold `length` tokens.
    fn past_for(&self, length: usize) -> usize {
        self.layers.range(length..).next().map_or(self.limits.context, |(&past, _)| past)
    }

    /// Runs the spans of a plan. `factors` has the rotary factors of each span; it is empty for models with one set.
    fn run_all(&mut self, plan: &StepPlan, factors: &[RopeFactors]) -> Result<(), StepError> {
        let mut row = 0;
        for (index, span) in plan.spans.iter().enumerate() {
            let factors = factors.get(index).copied().unwrap_or(RopeFactors::Short);
            self.run_span(plan, span, factors, row)?;
            row += span.logits.rows(span.tokens.len());
        }
        Ok(())
    }

    /// Runs one span. Its logits start at row `row`.
    fn run_span(
        &mut self,
        plan: &StepPlan,
        span: &Span,
        factors: RopeFactors,
        row: usize,
    ) -> Result<(), StepError> {
        let tokens = plan.tokens_of(span);
        // While a sequence is computed again with other rotary factors, the slot keeps the tokens after the span.
        let held = span.at.max(self.cache.length(span.slot));
        let needed = held.max(span.at + tokens.len());
        let graphs = self.layers.range_mut(needed..).find_map(|(&past, graphs)| {
            graphs.range_mut(tokens.len()..).next().map(|(&rows, parts)| (past, rows, parts))
        });
        let Some((past, rows, parts)) = graphs else {
            let reason = format!("no graph has {} new tokens and a past of {}", tokens.len(), span.at);
            return Err(StepError::BadPlan { reason });
        };

        self.cache.fit(span.slot, past, held)?;
        let bidirectional = self.picture_rows.is_some();
        let run = TokenRun { plan, at: span.at, past, rows, tokens, factors, bidirectional };
        let states = run_parts(parts, &self.tables, run, &mut self.cache, span.slot)?;
        let hidden = self.tables.embedding.width();
        let vocab = self.limits.vocab;
        let count = span.logits.rows(tokens.len());
        let wanted = states[(rows - count) * hidden..].chunks_exact(hidden);
        for (state, out) in wanted.zip(self.logits[row * vocab..].chunks_exact_mut(vocab)) {
            self.head.input(Slot::Hidden).copy_from_slice(state);
            self.head.run()?;
            for (value, out) in self.head.output(Slot::Logits).iter().zip(&mut *out) {
                *out = value.to_f32();
            }
            self.kept.scatter(out);
        }
        Ok(())
    }
}

/// Opens the embedding, and the tables of angles for each pair of inputs that some graph has.
fn tables(folder: &Path, manifest: &Manifest, arch: &DecoderArch) -> Result<Tables, DeviceError> {
    let embedding = Embedding::open(folder, manifest, arch)?;
    let width = embedding.width();
    let inputs = manifest.graphs.iter().filter(|graph| matches!(graph.part, Part::Layers { .. }));
    let mut angles = Vec::new();
    for (slots, roles) in ANGLES {
        if inputs.clone().any(|graph| graph.input(slots[0]).is_some()) {
            let switch = arch.switch().filter(|_| roles == SHORT);
            let rows = switch.unwrap_or(manifest.max_length).min(manifest.max_length);
            let short = angle_tables(folder, manifest, roles, [rows, width])?;
            let long = match switch {
                Some(_) => Some(angle_tables(folder, manifest, LONG, [manifest.max_length, width])?),
                None => None,
            };
            angles.push(AngleInputs { slots, short, long });
        }
    }
    Ok(Tables { embedding, angles })
}

/// Opens tables of at least `rows` rows and at most `width` columns.
fn angle_tables(
    folder: &Path,
    manifest: &Manifest,
    roles: [TableRole; 2],
    [rows, width]: [usize; 2],
) -> Result<[Table; 2], DeviceError> {
    let tables = pair(folder, manifest, roles)?;
    if tables[0].rows() < rows || tables[0].cols() > width {
        let found = format!("{} x {}", tables[0].rows(), tables[0].cols());
        return Err(DeviceError::package(format!("tables of angles with at least {rows} rows"), found));
    }
    Ok(tables)
}

/// Inputs for cosines and sines, with the roles of their tables.
const ANGLES: [([Slot; 2], [TableRole; 2]); 2] = [
    ([Slot::Cos, Slot::Sin], SHORT),
    ([Slot::LocalCos, Slot::LocalSin], [TableRole::LocalCos, TableRole::LocalSin]),
];

impl Executor for StaticExecutor {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        plan.check(&self.limits, |slot| self.cache.length(slot))?;
        plan.check_media(self.media_width())?;
        if self.picture_rows.is_some() {
            plan.check_whole_media()?;
        }
        self.logits_rows = plan.logits_rows();
        let wanted = self.logits_rows * self.limits.vocab;
        if self.logits.len() < wanted {
            self.logits.resize(wanted, 0.0);
        }
        let rewritten = self.switch.rewrite(plan)?;
        self.run_all(&rewritten.plan, &rewritten.factors)?;
        self.tables.check()?;
        self.switch.commit(plan, rewritten);
        for span in &plan.spans {
            self.cache.set_length(span.slot, span.at + span.tokens.len());
        }
        Ok(())
    }

    fn logits(&self) -> Logits<'_> {
        Logits::new(&self.logits[..self.logits_rows * self.limits.vocab], self.limits.vocab)
    }

    fn media_width(&self) -> Option<usize> {
        // Rows that attend to each other in both directions run in one step.
        let fits = self.picture_rows.is_none_or(|rows| rows <= self.limits.chunk);
        fits.then(|| self.tables.embedding.width())
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        check_truncate(slot, len, self.held(slot)?)?;
        self.switch.check_kept(slot, len)?;
        self.cache.truncate(slot, len);
        self.switch.truncate(slot, len);
        Ok(())
    }

    fn verify_limit(&self, at: usize) -> usize {
        self.limits.chunk.min(self.switch.tokens_with_same_factors(at))
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        check_read(&range, self.held(slot)?)?;
        KvBlock::read(range.len(), &self.kv, |layer| {
            Ok(self.cache.read(slot, layer, range.clone()).map(KvRows::F16))
        })
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        block.check(&self.kv, at, self.held(slot)?, self.limits.context)?;
        let length = at + block.tokens();
        self.switch.hand_over(slot, at, length)?;
        self.cache.fit(slot, self.past_for(length), at)?;
        for (index, layer) in block.layers().iter().enumerate() {
            let keys = layer.keys.to_f16()?;
            let values = layer.values.to_f16()?;
            self.cache.write(slot, index, at, [&keys, &values])?;
        }
        self.cache.set_length(slot, length);
        Ok(())
    }

    fn record_tokens(&mut self, slot: SlotId, at: usize, tokens: &[Position]) {
        self.switch.record_tokens(slot, at, tokens);
    }

    fn portable_length(&self) -> usize {
        self.switch.portable_length()
    }

    fn is_portable(&self, slot: SlotId) -> bool {
        self.switch.is_short(slot)
    }

    fn copy_kv(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        copy.check(self.held(copy.from)?, self.held(copy.to)?)?;
        self.cache.fit(copy.to, self.past_for(copy.tokens.end), copy.tokens.start)?;
        self.switch.copy(copy, |copy| self.cache.copy(copy))?;
        self.cache.set_length(copy.to, copy.tokens.end);
        Ok(())
    }
}
