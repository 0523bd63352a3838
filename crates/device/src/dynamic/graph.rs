//! Runs of a decoder's graph. Its inputs and outputs are bound to memory of the executor; they are bound again only if
//! a shape or an address has changed.

use narthex_engine::executor::StepError;
use narthex_spec::{DType, SlotId};

use super::{
    input::DecoderInput,
    memory::SequenceMemory,
    names::{CacheOutput, DecoderNames},
    rows::{KvPart, KvTensor},
};
use crate::{
    ort::{Binding, Session, Tensor},
    states::{SlotStates, StatePart},
    table::Table,
};

/// Rotary angles of every position.
pub(super) struct AngleTables {
    positions: usize,
    pairs: usize,
    /// Cosines and sines, each of shape `[positions, pairs]`.
    parts: [Vec<f32>; 2],
}

impl AngleTables {
    /// Reads the tables of cosines and sines.
    pub(super) fn read(tables: [&Table; 2]) -> Self {
        Self {
            positions: tables[0].rows(),
            pairs: tables[0].cols(),
            parts: tables.map(|table| {
                let mut rows = vec![0.0; table.rows() * table.cols()];
                let places = rows.chunks_exact_mut(table.cols());
                places.enumerate().for_each(|(row, out)| table.read_row(row, out));
                rows
            }),
        }
    }
}

/// A sequence in a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunRow {
    pub(super) slot: SlotId,
    /// Number of tokens before the new ones.
    pub(super) at: usize,
}

pub(super) struct GraphRun<'a> {
    /// Sequences of the batch, one for each row.
    pub(super) batch: &'a [RunRow],
    /// Number of new tokens in each row.
    pub(super) sequence: usize,
    /// Number of past and new tokens in the longest row.
    pub(super) total: usize,
    /// Index of the first row in the cache.
    pub(super) first_row: usize,
    /// Input for the tokens. The first `batch · sequence` places are read.
    pub(super) feed: &'a mut DecoderInput,
    /// Cosines and sines of every position, for graphs that have them as inputs.
    pub(super) angles: Option<&'a mut AngleTables>,
    /// Output of the head, of shape `[logits_rows, width]`.
    pub(super) logits: &'a mut [f32],
    pub(super) logits_rows: usize,
}

/// Shapes and addresses of a binding. If the key is equal, the binding is still valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BindingKey {
    batch: usize,
    sequence: usize,
    first_row: usize,
    logits_rows: usize,
    feed: usize,
    angles: usize,
    logits: usize,
    generation: u64,
}

/// A binding and its small inputs.
pub(super) struct BoundGraph {
    binding: Binding,
    key: Option<BindingKey>,
    /// Past length of each row, written before each run.
    pub(super) lengths: Vec<i32>,
    /// Rows for which the head computes logits, written before each run.
    pub(super) rows: Vec<i64>,
    total: [i32; 1],
    /// New keys and values of each layer, for graphs that return only these.
    new_kv: Vec<[Vec<f32>; 2]>,
    /// Rows of past and of new tokens of each short convolution.
    convolved: Vec<[Vec<f32>; 2]>,
    /// Both tensors of each layer's states, past and present.
    states: Vec<[[Vec<f32>; 2]; 2]>,
    /// Mask of the new tokens. There is no padding.
    mask: Vec<f32>,
    /// Number of logits in a row of the head's output.
    width: usize,
}

impl BoundGraph {
    /// Creates a binding for batches or chunks of at most `most` tokens. The head returns rows of `width` logits.
    pub(super) fn new(session: &Session, most: usize, width: usize) -> Result<Self, StepError> {
        Ok(Self {
            binding: Binding::new(session)?,
            key: None,
            lengths: vec![0; most],
            rows: vec![0; most],
            total: [0],
            new_kv: Vec::new(),
            convolved: Vec::new(),
            states: Vec::new(),
            mask: vec![1.0; most],
            width,
        })
    }

    /// Runs the graph. The caller has written `lengths` and `rows`.
    pub(super) fn run(
        &mut self,
        session: &mut Session,
        names: &DecoderNames,
        memory: &mut SequenceMemory,
        run: GraphRun<'_>,
    ) -> Result<(), StepError> {
        self.total[0] = run.total as i32;
        let key = BindingKey {
            batch: run.batch.len(),
            sequence: run.sequence,
            first_row: run.first_row,
            logits_rows: run.logits_rows,
            feed: run.feed.address(),
            angles: run.angles.as_ref().map_or(0, |angles| angles.parts[0].as_ptr() as usize),
            logits: run.logits.as_ptr() as usize,
            generation: memory.cache.generation(),
        };

        let row = run.first_row;
        let batch = run.batch;
        let new = run.total.saturating_sub(run.sequence)..run.total;
        if self.key != Some(key) {
            self.key = None;
            self.bind(names, memory, run)?;
            self.key = Some(key);
        }
        let SequenceMemory { cache, convolutions, states } = memory;

        for (index, [past, _]) in self.convolved.iter_mut().enumerate() {
            for (sequence, past) in
                batch.iter().zip(past.chunks_exact_mut(convolutions.past_elements(index).max(1)))
            {
                convolutions.read_past(sequence.slot, index, sequence.at, past);
            }
        }
        self.read_states(states, batch);
        self.binding.run(session)?;
        self.write_states(states, batch, new.len())?;
        for (index, [_, new]) in self.convolved.iter().enumerate() {
            for (sequence, new) in batch.iter().zip(new.chunks_exact((new.len() / batch.len()).max(1))) {
                convolutions.write(sequence.slot, index, sequence.at, new)?;
            }
        }
        for (layer, parts) in self.new_kv.iter().enumerate() {
            for (part, fresh) in KvPart::BOTH.into_iter().zip(parts) {
                cache.place(KvTensor { layer, part }, row, new.clone(), fresh);
            }
        }
        Ok(())
    }

    /// Copies the states of the sequences of a batch to the inputs.
    fn read_states(&mut self, states: &SlotStates, batch: &[RunRow]) {
        for (index, parts) in self.states.iter_mut().enumerate() {
            for (part, [past, _]) in StatePart::BOTH.into_iter().zip(parts) {
                let one = past.len() / batch.len();
                for (sequence, past) in batch.iter().zip(past.chunks_exact_mut(one.max(1))) {
                    states.read(sequence.slot, sequence.at, index, part, past);
                }
            }
        }
    }

    /// Copies the states after `count` more tokens of each sequence from the outputs.
    fn write_states(&self, states: &mut SlotStates, batch: &[RunRow], count: usize) -> Result<(), StepError> {
        if self.states.is_empty() {
            return Ok(());
        }
        for (row, sequence) in batch.iter().enumerate() {
            states.begin(sequence.slot, sequence.at + count)?;
            for (index, parts) in self.states.iter().enumerate() {
                for (part, [_, present]) in StatePart::BOTH.into_iter().zip(parts) {
                    let one = present.len() / batch.len();
                    states.write(sequence.slot, index, part, &present[row * one..(row + 1) * one]);
                }
            }
        }
        Ok(())
    }

    fn bind(
        &mut self,
        names: &DecoderNames,
        memory: &mut SequenceMemory,
        run: GraphRun<'_>,
    ) -> Result<(), StepError> {
        let SequenceMemory { cache, convolutions, states } = memory;
        let count = run.batch.len();
        let batch = count as i64;
        let rows = run.logits_rows as i64;
        let width = self.width as i64;
        if names.cache_output == CacheOutput::New {
            self.new_kv.resize_with(names.cache.len(), Default::default);
        }
        self.convolved.resize_with(names.convolutions.len(), Default::default);
        self.states.resize_with(names.states.len(), Default::default);
        let b = &mut self.binding;

        // SAFETY: the feed, the angles, the logits and the cache belong to the executor that owns this binding; all
        // other memory belongs to this value. If any of it moves, its address or its generation changes, and with it
        // the key, so that it is bound again before the next run.
        unsafe {
            match run.feed {
                DecoderInput::Rows { embedding, rows, per_layer } => {
                    let widths = [embedding.width(), embedding.per_layer_width()];
                    let inputs = [Some(&names.first), names.per_layer.as_ref()];
                    for ((name, rows), width) in inputs.into_iter().zip([rows, per_layer]).zip(widths) {
                        let Some(name) = name else { continue };
                        let shape = [batch, run.sequence as i64, width as i64];
                        let rows = &mut rows[..count * run.sequence * width];
                        b.input(name, Tensor::new(rows, DType::F32, &shape))?;
                    }
                }
                DecoderInput::Tokens { tokens, .. } => {
                    let tokens = &mut tokens[..count * run.sequence];
                    let shape = [batch, run.sequence as i64];
                    b.input(&names.first, Tensor::new(tokens, DType::I64, &shape))?;
                }
            }
            b.input(&names.seqlens_k, Tensor::new(&mut self.lengths[..count], DType::I32, &[batch]))?;
            b.input(&names.total_length, Tensor::new(&mut self.total, DType::I32, &[]))?;
            b.input(&names.logits_rows, Tensor::new(&mut self.rows[..run.logits_rows], DType::I64, &[rows]))?;
            if let (Some(names), Some(angles)) = (&names.angles, run.angles) {
                let shape = [angles.positions as i64, angles.pairs as i64];
                for (name, part) in names.iter().zip(&mut angles.parts) {
                    b.input(name, Tensor::new(part, DType::F32, &shape))?;
                }
            }
            b.output(&names.logits, Tensor::new(run.logits, DType::F32, &[rows, width]))?;
            for (index, (names, [past, new])) in
                names.convolutions.iter().zip(&mut self.convolved).enumerate()
            {
                let [width, rows] = convolutions.shape(index);
                past.resize(count * rows * width, 0.0);
                new.resize(count * run.sequence * width, 0.0);
                let shape = [count, rows, width].map(|extent| extent as i64);
                b.input(&names.past, Tensor::new(past, DType::F32, &shape))?;
                let shape = [count, run.sequence, width].map(|extent| extent as i64);
                b.output(&names.new, Tensor::new(new, DType::F32, &shape))?;
            }
            if let Some(name) = &names.token_mask {
                let mask = &mut self.mask[..count * run.sequence];
                b.input(name, Tensor::new(mask, DType::F32, &[batch, run.sequence as i64]))?;
            }
            for (index, (names, parts)) in names.states.iter().zip(&mut self.states).enumerate() {
                for (part, [past, present]) in StatePart::BOTH.into_iter().zip(parts) {
                    let extents = states.extents(index, part);
                    let shape: Vec<i64> =
                        [count].iter().chain(extents).map(|extent| *extent as i64).collect();
                    let length = count * extents.iter().product::<usize>();
                    past.resize(length, 0.0);
                    present.resize(length, 0.0);
                    b.input(&names.past[part as usize], Tensor::new(past, DType::F32, &shape))?;
                    b.output(&names.present[part as usize], Tensor::new(present, DType::F32, &shape))?;
                }
            }
            let rows = run.first_row..run.first_row + count;
            cache.bind(b, names, rows, run.sequence, &mut self.new_kv)
        }
    }
}
