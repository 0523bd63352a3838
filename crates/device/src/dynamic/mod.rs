//! The dynamic variant of a decoder, on the CPU or a GPU. It implements the engine's [`Executor`].
//!
//! A step becomes one run for all single tokens, batched over neighbouring rows of the cache, and one run for each
//! longer span, because GroupQueryAttention accepts several new tokens after a past in only one row.

mod device_cache;
mod entries;
mod graph;
mod growth;
mod host_cache;
mod input;
mod kv_cache;
mod long_rope;
mod media;
mod memory;
mod names;
mod options;
mod parts;
mod rows;

use std::{ops::Range, path::Path};

use narthex_engine::{
    executor::{
        Executor, KvBlock, KvCopy, Limits, LogitRows, Logits, Span, StepError, StepPlan, check_read,
        check_truncate,
    },
    position::{Position, same_kind},
};
use narthex_spec::{
    KvPrecision, SlotId,
    arch::Steps,
    manifest::{KvLayout, Manifest},
};

use crate::{
    ep::Device,
    error::DeviceError,
    inventory,
    operators::AttentionSwitch,
    ort::SessionOptions,
    package,
    packed_weights::PackedWeights,
    placement::GraphPlacement,
    rope_switch::{RopeFactors, RopeSwitch},
    runtime::Runtime,
    static_shapes,
    vocab_subset::VocabSubset,
};

use graph::{BoundGraph, GraphRun, RunRow};
use long_rope::LongRope;
use media::{MediaAttention, media_attention};
use memory::SequenceMemory;
use names::DecoderNames;

pub use options::ExecutorOptions;
use options::bytes_per_token;

pub(crate) use input::DecoderInput;
pub(crate) use parts::DecoderParts;
use parts::LoadedGraph;

/// A decoder on one device. Its cache is in the memory from which the device's attention reads: on a GPU, the GPU's
/// own.
pub struct DynamicExecutor {
    limits: Limits,
    feed: DecoderInput,
    kept: VocabSubset,
    steps: Steps,
    /// Maximum number of rows in a batch.
    batch: usize,
    long: Option<LongRope>,
    switch: RopeSwitch,
    memory: SequenceMemory,
    /// Layouts of all entries of the cache, those of convolutions and states among them.
    kv: Vec<KvLayout>,
    /// Sequences of a batch, by their rows.
    batch_rows: Vec<RunRow>,
    decode: BoundGraph,
    prefill: BoundGraph,
    logits: Vec<f32>,
    /// Number of rows of logits from the last step.
    logits_rows: usize,
    group: Vec<SlotId>,
    // Declared after the bindings, so that it is dropped after them: they belong to it.
    graph: LoadedGraph,
    /// Graph for several tokens, if it differs from `graph`.
    prompt: Option<LoadedGraph>,
    media: MediaAttention,
}

impl DynamicExecutor {
    /// Loads a package's decoder on a device. Nodes that a GPU refuses run on the CPU; [`Self::placements`] lists them.
    ///
    /// [`DeviceError::Variant`] for a device that takes only graphs of fixed shape, [`DeviceError::NoDevice`] for an
    /// absent device, [`DeviceError::Package`] and [`DeviceError::Read`] for a package that is not a whole decoder of
    /// the dynamic variant, [`DeviceError::Ort`] for a graph that ONNX Runtime refuses, [`DeviceError::Option`] for an option
    /// that is zero.
    pub fn open(
        runtime: &'static Runtime,
        package: &Path,
        manifest: &Manifest,
        device: &Device,
        options: &ExecutorOptions<'_>,
    ) -> Result<Self, DeviceError> {
        package::takes_dynamic(device, manifest)?;
        let parts = DecoderParts::read(package, manifest, options)?;
        let DecoderParts { entry, mut feed, kept, steps, mut limits, long, switch, names } = parts;
        feed.resize(limits.chunk.max(limits.batch));
        let prompt = package::prompt_graph(manifest);
        let context = static_shapes::shared_by(package, [Some(entry), prompt])?;
        // The graph for prompts uses the same cache, and its attention may not have been replaced.
        let kv_precision = if prompt.is_some() { KvPrecision::F32 } else { options.kv_precision };
        let session = SessionOptions::on(device, inventory::threads(options.threads));
        let packed_weights = options.packed_weights;
        let session = SessionOptions { context, kv_precision, packed_weights, ..session };
        let graph = LoadedGraph::open(runtime, package, entry, names, session)?;
        let prompt = match prompt {
            Some(prompt) if prompt.kv != entry.kv => {
                return Err(DeviceError::package("graphs of one cache", "two"));
            }
            Some(prompt) => {
                let names = DecoderNames::new(prompt, &feed)?;
                Some(LoadedGraph::open(runtime, package, prompt, names, session)?)
            }
            None => None,
        };

        let names = &graph.names;
        let session = &graph.session;
        let kv = graph.cache_layouts(&entry.kv);
        limits.kv.bytes_per_token = bytes_per_token(&kv);
        let memory = SequenceMemory::new(runtime, device, session, names, &kv, &limits)?;

        let media = media_attention(manifest, &limits, &graph, prompt.as_ref());
        let width = kept.width();
        let decode = BoundGraph::new(session, limits.batch, width).map_err(DeviceError::binding)?;
        let prompt_session = prompt.as_ref().map_or(session, |prompt| &prompt.session);
        let prefill = BoundGraph::new(prompt_session, limits.chunk, width).map_err(DeviceError::binding)?;

        Ok(Self {
            memory,
            kv,
            batch_rows: Vec::with_capacity(limits.batch),
            decode,
            prefill,
            logits: vec![0.0; limits.batch * limits.vocab],
            logits_rows: 0,
            group: Vec::with_capacity(limits.batch),
            batch: if names.one_row { 1 } else { limits.batch },
            limits,
            feed,
            kept,
            steps,
            long,
            switch,
            graph,
            prompt,
            media,
        })
    }

    /// Returns the placement of the nodes of each graph.
    pub fn placements(&self) -> Vec<GraphPlacement> {
        let graphs = std::iter::once(&self.graph).chain(&self.prompt);
        graphs
            .map(|graph| GraphPlacement {
                graph: graph.file.clone(),
                placement: graph.session.placement().clone(),
            })
            .collect()
    }

    /// Returns the packed weights of each graph, if the CPU computes with packed weights. A later load of the same
    /// package need not pack them again if they are stored and passed in its options.
    pub fn packed_weights(&self) -> Vec<PackedWeights> {
        let graphs = std::iter::once(&self.graph).chain(&self.prompt);
        graphs.filter_map(|graph| graph.session.packed_weights().cloned()).collect()
    }

    /// Returns the shape and the element type of each layer's cache.
    pub fn cache_layouts(&self) -> &[KvLayout] {
        &self.kv
    }

    /// Returns the number of tokens in a slot.
    fn held(&self, slot: SlotId) -> Result<usize, StepError> {
        self.limits.check_slot(slot)?;
        Ok(self.memory.cache.length(slot))
    }

    /// Runs the spans of a plan. `factors` has the rotary factors of each span; if it is empty, all spans use the short
    /// ones.
    fn run_all(&mut self, plan: &StepPlan, factors: &[RopeFactors]) -> Result<(), StepError> {
        let mut at = 0;
        let mut row = 0;
        while at < plan.spans.len() {
            let chosen = factors_of(factors, at);
            let spans = plan.spans[at..].iter().take(self.memory.cache.max_rows(self.batch)).enumerate();
            let group = spans
                .take_while(|(index, span)| is_single(span) && factors_of(factors, at + index) == chosen)
                .count();
            if group > 0 {
                self.run_batch(plan, &plan.spans[at..at + group], chosen, row)?;
                row += group;
                at += group;
            } else {
                let span = &plan.spans[at];
                self.run_span(plan, span, chosen, row)?;
                row += span.logits.rows(span.tokens.len());
                at += 1;
            }
        }
        Ok(())
    }

    /// Runs single-token spans as one batch. Their logits start at row `row`.
    fn run_batch(
        &mut self,
        plan: &StepPlan,
        spans: &[Span],
        factors: RopeFactors,
        row: usize,
    ) -> Result<(), StepError> {
        self.group.clear();
        self.group.extend(spans.iter().map(|span| span.slot));
        let first_row = self.memory.cache.gather(&self.group);

        let lengths = &mut self.decode.lengths;
        self.batch_rows.clear();
        self.batch_rows.extend(spans.iter().map(|span| RunRow { slot: span.slot, at: span.at }));
        self.batch_rows.sort_by_key(|row| self.memory.cache.row(row.slot));
        for (index, span) in spans.iter().enumerate() {
            let place = self.memory.cache.row(span.slot) - first_row;
            self.feed.write(place, plan, plan.tokens_of(span)[0], span.at);
            lengths[place] = span.at as i32;
            self.decode.rows[index] = place as i64;
        }

        let longest = spans.iter().map(|span| span.at + 1).max().unwrap_or(1);
        let vocab = self.limits.vocab;
        let logits = &mut self.logits[row * vocab..(row + spans.len()) * vocab];
        let run = GraphRun {
            batch: &self.batch_rows,
            sequence: 1,
            total: longest,
            first_row,
            feed: &mut self.feed,
            angles: self.long.as_mut().map(|long| long.angles(factors)),
            logits: &mut logits[..spans.len() * self.kept.width()],
            logits_rows: spans.len(),
        };

        self.decode.run(&mut self.graph.session, &self.graph.names, &mut self.memory, run)?;
        self.kept.scatter(logits);
        Ok(())
    }

    /// Runs one span, as a whole or token by token, depending on the graph. Its logits start at row `row`.
    fn run_span(
        &mut self,
        plan: &StepPlan,
        span: &Span,
        factors: RopeFactors,
        row: usize,
    ) -> Result<(), StepError> {
        let tokens = plan.tokens_of(span);
        let fits = self.prompt.as_ref().is_none_or(|prompt| span.at <= prompt.past);
        if (self.steps == Steps::Any || span.at == 0) && fits {
            let count = span.logits.rows(tokens.len());
            let run = SlotRun { plan, slot: span.slot, at: span.at, tokens, factors };
            return match &self.media {
                MediaAttention::Bidirectional(switch) if !plan.media.is_empty() => {
                    let switch = switch.clone();
                    self.run_with_media(run, row..row + count, &switch)
                }
                _ => self.run_tokens(run, row..row + count),
            };
        }

        let first = tokens.len() - span.logits.rows(tokens.len());
        for (index, token) in tokens.iter().enumerate() {
            let rows = row + index.saturating_sub(first)..row + (index + 1).saturating_sub(first);
            let tokens = std::slice::from_ref(token);
            let run = SlotRun { plan, slot: span.slot, at: span.at + index, tokens, factors };
            self.run_tokens(run, rows)?;
        }
        Ok(())
    }

    /// Runs tokens of one slot as [`Self::run_tokens`], with a run of its own for the rows of each medium, which attend to
    /// each other in both directions.
    fn run_with_media(
        &mut self,
        run: SlotRun<'_>,
        rows: Range<usize>,
        switch: &AttentionSwitch,
    ) -> Result<(), StepError> {
        // Index of the first token with logits.
        let first = run.tokens.len() - rows.len();
        let mut start = 0;
        while start < run.tokens.len() {
            let end = start + same_kind(&run.tokens[start..]).max(1);
            let tokens = &run.tokens[start..end];
            let is_medium = tokens[0].as_row().is_some();
            let row = |index: usize| rows.start + index.saturating_sub(first);
            let part = SlotRun { at: run.at + start, tokens, ..run };
            switch.set(is_medium);
            let outcome = self.run_tokens(part, row(start)..row(end));
            switch.set(false);
            outcome?;
            start = end;
        }
        Ok(())
    }

    /// Runs tokens of one slot. The logits of the last tokens are written to `rows`.
    fn run_tokens(&mut self, run: SlotRun<'_>, rows: Range<usize>) -> Result<(), StepError> {
        let SlotRun { plan, slot, at, tokens, factors } = run;
        for (place, &token) in tokens.iter().enumerate() {
            self.feed.write(place, plan, token, at + place);
        }
        let (bound, graph) = match &mut self.prompt {
            Some(prompt) if tokens.len() > 1 => (&mut self.prefill, prompt),
            Some(_) => (&mut self.decode, &mut self.graph),
            None => (&mut self.prefill, &mut self.graph),
        };
        let first = tokens.len() - rows.len();
        for (place, index) in bound.rows.iter_mut().zip(first..tokens.len()) {
            *place = index as i64;
        }
        bound.lengths[0] = (at + tokens.len() - 1) as i32;
        let vocab = self.limits.vocab;
        let logits = &mut self.logits[rows.start * vocab..rows.end * vocab];
        let run = GraphRun {
            batch: &[RunRow { slot, at }],
            sequence: tokens.len(),
            total: at + tokens.len(),
            first_row: self.memory.cache.row(slot),
            feed: &mut self.feed,
            angles: self.long.as_mut().map(|long| long.angles(factors)),
            logits_rows: rows.len(),
            logits: &mut logits[..rows.len() * self.kept.width()],
        };

        bound.run(&mut graph.session, &graph.names, &mut self.memory, run)?;
        self.kept.scatter(logits);
        Ok(())
    }
}

/// Returns the rotary factors of a span.
fn factors_of(factors: &[RopeFactors], span: usize) -> RopeFactors {
    factors.get(span).copied().unwrap_or(RopeFactors::Short)
}

/// Tokens of one slot that run together.
#[derive(Clone, Copy)]
struct SlotRun<'a> {
    /// Plan with the rows of media.
    plan: &'a StepPlan,
    slot: SlotId,
    /// Number of tokens before them.
    at: usize,
    tokens: &'a [Position],
    factors: RopeFactors,
}

/// Returns whether a span can be part of a batch.
fn is_single(span: &Span) -> bool {
    span.tokens.len() == 1 && span.logits != LogitRows::Nothing
}

impl Executor for DynamicExecutor {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        plan.check(&self.limits, |slot| self.memory.cache.length(slot))?;
        plan.check_media(self.media_width())?;
        if matches!(self.media, MediaAttention::Bidirectional(_)) {
            plan.check_whole_media()?;
        }
        self.memory.cache.reserve(plan.spans.iter().map(|span| (span.slot, span.at + span.tokens.len())))?;
        self.logits_rows = plan.logits_rows();
        let wanted = self.logits_rows * self.limits.vocab;
        if self.logits.len() < wanted {
            self.logits.resize(wanted, 0.0);
        }
        let rewritten = self.switch.rewrite(plan)?;
        self.run_all(&rewritten.plan, &rewritten.factors)?;
        self.feed.check()?;
        self.switch.commit(plan, rewritten);
        for span in &plan.spans {
            self.memory.commit(span);
        }
        Ok(())
    }

    fn logits(&self) -> Logits<'_> {
        Logits::new(&self.logits[..self.logits_rows * self.limits.vocab], self.limits.vocab)
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        check_truncate(slot, len, self.held(slot)?)?;
        self.switch.check_kept(slot, len)?;
        self.memory.truncate(slot, len)?;
        self.switch.truncate(slot, len);
        Ok(())
    }

    fn rewind_length(&self, slot: SlotId, len: usize) -> usize {
        self.memory.states.rewind_length(slot, len)
    }

    fn media_width(&self) -> Option<usize> {
        match self.media {
            MediaAttention::Causal | MediaAttention::Bidirectional(_) => self.feed.width(),
            MediaAttention::Unsupported => None,
        }
    }

    fn verify_limit(&self, at: usize) -> usize {
        let is_whole =
            self.steps == Steps::Any && self.prompt.as_ref().is_none_or(|prompt| at <= prompt.past);
        if is_whole { self.limits.chunk.min(self.switch.tokens_with_same_factors(at)) } else { 1 }
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        self.memory.check_handover()?;
        check_read(&range, self.held(slot)?)?;
        KvBlock::read(range.len(), &self.kv, |entry| self.read_entry(entry, slot, range.clone()))
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        self.memory.check_handover()?;
        block.check(&self.kv, at, self.held(slot)?, self.limits.context)?;
        let length = at + block.tokens();
        self.switch.hand_over(slot, at, length)?;
        self.memory.cache.reserve([(slot, length)].into_iter())?;
        for (entry, block) in block.layers().iter().enumerate() {
            self.write_entry(entry, slot, at, block)?;
        }
        self.memory.cache.set_length(slot, length);
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
        self.memory.states.check_copy(copy)?;
        self.memory.cache.reserve_copy(copy)?;
        self.switch.copy(copy, |copy| self.memory.copy(copy))?;
        self.memory.states.copy(copy)?;
        self.memory.cache.set_length(copy.to, copy.tokens.end);
        Ok(())
    }
}
