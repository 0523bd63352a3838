//! Variant A of a decoder on the CPU: implements the engine's [`Executor`].
//!
//! A step becomes one run for all single tokens, batched over neighbouring rows of the cache, and one run for each
//! longer span, because GroupQueryAttention takes several new tokens after a past in one row only.

mod cache;
mod graph;

use std::path::Path;

use narthex_engine::executor::{Executor, KvLimits, Limits, Logits, Span, StepError, StepPlan, Wanted};
use narthex_spec::{
    SlotId,
    arch::Architecture,
    manifest::{Manifest, TableRole},
};

use crate::{
    error::DeviceError,
    memory::Buffer,
    ort::{Session, SessionOptions},
    placement::Placement,
    runtime::Runtime,
    table::Table,
};

use cache::Cache;
use graph::{Bound, Names, Run};

/// Bounds of an executor.
#[derive(Debug, Clone, Copy)]
pub struct ExecutorOptions {
    /// Threads; 0 takes one per usable core.
    pub threads: usize,
    /// Slots.
    pub slots: usize,
    /// The most bytes that the KV cache may take.
    pub kv_budget: usize,
    /// Tokens by which the cache's capacity grows.
    pub kv_step: usize,
    /// The most new tokens in one span.
    pub chunk: usize,
}

/// A decoder on the CPU.
pub struct DynamicExecutor {
    limits: Limits,
    table: Table,
    cache: Cache,
    names: Names,
    decode: Bound,
    prefill: Bound,
    embeds: Vec<f32>,
    logits: Vec<f32>,
    /// Logits of spans that want none: the graph computes one row regardless.
    spare: Vec<f32>,
    group: Vec<SlotId>,
    // Dropped last: the bindings above belong to it.
    session: Session,
}

/// Threads for a number that may be 0.
pub(crate) fn threads(wanted: usize) -> usize {
    match wanted {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        some => some,
    }
}

impl DynamicExecutor {
    /// Loads a package's decoder.
    pub fn open(
        runtime: &Runtime,
        package: &Path,
        manifest: &Manifest,
        options: &ExecutorOptions,
    ) -> Result<Self, DeviceError> {
        let unusable = |expected: &str, found: &str| DeviceError::Package {
            expected: expected.to_owned(),
            found: found.to_owned(),
        };
        let Architecture::Decoder(arch) = &manifest.architecture else {
            return Err(unusable("a decoder", "an encoder"));
        };
        let entry = manifest.graphs.first().ok_or_else(|| unusable("a graph", "none"))?;
        let token = manifest.tables.iter().find(|table| table.role == TableRole::Token);
        let table = Table::open(package, token.ok_or_else(|| unusable("a token table", "none"))?)?;
        if (table.rows(), table.cols()) != (arch.vocab, arch.hidden) {
            let found = format!("{} x {}", table.rows(), table.cols());
            return Err(unusable(&format!("a token table of {} x {}", arch.vocab, arch.hidden), &found));
        }
        let names = Names::new(entry)?;
        let session_options = SessionOptions { threads: threads(options.threads) };
        let session = Session::open(runtime, &package.join(&entry.file), session_options)?;
        let limits = Limits {
            slots: options.slots,
            context: manifest.max_length,
            chunk: options.chunk.min(manifest.max_length),
            batch: options.slots,
            vocab: arch.vocab,
            kv: KvLimits {
                bytes_per_token: entry.kv.iter().map(|layer| layer.bytes_per_token()).sum(),
                step: options.kv_step,
                budget: options.kv_budget,
            },
        };
        let failed = |error: StepError| DeviceError::Ort { what: "make a binding", message: error.to_string() };
        let width = limits.chunk.max(limits.batch) * arch.hidden;
        Ok(Self {
            cache: Cache::new(&entry.kv, &limits),
            decode: Bound::new(&session, limits.batch).map_err(failed)?,
            prefill: Bound::new(&session, limits.chunk).map_err(failed)?,
            embeds: vec![0.0; width],
            logits: Vec::new(),
            spare: vec![0.0; arch.vocab],
            group: Vec::with_capacity(limits.batch),
            limits,
            table,
            names,
            session,
        })
    }

    /// Where the graph's nodes run.
    pub fn placement(&self) -> &Placement {
        self.session.placement()
    }

    fn check(&self, plan: &StepPlan) -> Result<(), StepError> {
        let bad = |reason: String| Err(StepError::BadPlan { reason });
        for (index, span) in plan.spans.iter().enumerate() {
            let (slot, length) = (span.slot.index(), span.tokens.len());
            if slot >= self.limits.slots || plan.spans[..index].iter().any(|other| other.slot == span.slot) {
                return bad(format!("slot {slot} is unknown or named twice"));
            }
            if span.at != self.cache.length(span.slot) {
                let held = self.cache.length(span.slot);
                return bad(format!("slot {slot} holds {held} tokens, the span begins at {}", span.at));
            }
            if length == 0 || length > self.limits.chunk || span.at + length > self.limits.context {
                return bad(format!("a span of {length} tokens at {} does not fit", span.at));
            }
            if let Some(token) = plan.tokens_of(span).iter().find(|&&token| token as usize >= self.table.rows()) {
                return bad(format!("token {token} is not below {}", self.table.rows()));
            }
        }
        Ok(())
    }

    /// Runs neighbouring single-token spans as one batch; their logits begin at row `row`.
    fn run_batch(&mut self, plan: &StepPlan, spans: &[Span], row: usize) -> Result<(), StepError> {
        self.group.clear();
        self.group.extend(spans.iter().map(|span| span.slot));
        let first_row = self.cache.gather(&self.group);
        let width = self.table.cols();
        let lengths = &mut self.decode.lengths;
        for (index, span) in spans.iter().enumerate() {
            let place = self.cache.row(span.slot) - first_row;
            self.table.read_row(plan.tokens_of(span)[0] as usize, &mut self.embeds[place * width..(place + 1) * width]);
            lengths[place] = span.at as i32;
            self.decode.rows[index] = place as i64;
        }
        let longest = spans.iter().map(|span| span.at + 1).max().unwrap_or(1);
        let vocab = self.limits.vocab;
        let run = Run {
            batch: spans.len(),
            sequence: 1,
            total: longest,
            first_row,
            embeds: &mut self.embeds[..spans.len() * width],
            logits: &mut self.logits[row * vocab..(row + spans.len()) * vocab],
            logits_rows: spans.len(),
        };
        self.decode.run(&mut self.session, &self.names, &mut self.cache, run)
    }

    /// Runs one span; its logits begin at row `row`.
    fn run_span(&mut self, plan: &StepPlan, span: &Span, row: usize) -> Result<(), StepError> {
        let width = self.table.cols();
        let tokens = plan.tokens_of(span);
        for (&token, out) in tokens.iter().zip(self.embeds.chunks_exact_mut(width)) {
            self.table.read_row(token as usize, out);
        }
        let count = span.logits.rows(tokens.len());
        let first = tokens.len() - count.max(1);
        for (place, index) in self.prefill.rows.iter_mut().zip(first..tokens.len()) {
            *place = index as i64;
        }
        self.prefill.lengths[0] = (span.at + tokens.len() - 1) as i32;
        let vocab = self.limits.vocab;
        let run = Run {
            batch: 1,
            sequence: tokens.len(),
            total: span.at + tokens.len(),
            first_row: self.cache.row(span.slot),
            embeds: &mut self.embeds[..tokens.len() * width],
            logits: match span.logits {
                Wanted::Nothing => &mut self.spare,
                Wanted::Last | Wanted::All => &mut self.logits[row * vocab..(row + count) * vocab],
            },
            logits_rows: count.max(1),
        };
        self.prefill.run(&mut self.session, &self.names, &mut self.cache, run)
    }
}

/// Whether a span can be part of a batch.
fn is_single(span: &Span) -> bool {
    span.tokens.len() == 1 && span.logits != Wanted::Nothing
}

impl Executor for DynamicExecutor {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn step(&mut self, plan: &StepPlan) -> Result<Logits<'_>, StepError> {
        self.check(plan)?;
        self.cache.reserve(plan.spans.iter().map(|span| (span.slot, span.at + span.tokens.len())))?;
        let rows = plan.logits_rows();
        if self.logits.len() < rows * self.limits.vocab {
            self.logits.resize(rows * self.limits.vocab, 0.0);
        }
        let (mut at, mut row) = (0, 0);
        while at < plan.spans.len() {
            let group = plan.spans[at..].iter().take(self.limits.batch).take_while(|span| is_single(span)).count();
            if group > 0 {
                self.run_batch(plan, &plan.spans[at..at + group], row)?;
                row += group;
                at += group;
            } else {
                let span = &plan.spans[at];
                self.run_span(plan, span, row)?;
                row += span.logits.rows(span.tokens.len());
                at += 1;
            }
        }
        for span in &plan.spans {
            self.cache.set_length(span.slot, span.at + span.tokens.len());
        }
        Ok(Logits::new(&self.logits[..rows * self.limits.vocab], self.limits.vocab))
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        let held = self.cache.length(slot);
        if len > held {
            return Err(StepError::BadPlan { reason: format!("slot {} holds only {held} tokens", slot.0) });
        }
        self.cache.truncate(slot, len);
        Ok(())
    }
}

/// A buffer for the cache, or the error that says how much was wanted.
fn allocate(length: usize, error: &StepError) -> Result<Buffer, StepError> {
    Buffer::zeroed(length).ok_or_else(|| error.clone())
}
