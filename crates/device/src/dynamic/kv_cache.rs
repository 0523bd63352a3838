//! A decoder's KV cache, in the host's memory or in the device's own.

use std::ops::Range;

use narthex_engine::executor::{KvCopy, KvRows, StepError};
use narthex_spec::{DType, SlotId, manifest::KvLayout};

use super::{
    device_cache::DeviceKvCache,
    host_cache::HostKvCache,
    names::DecoderNames,
    rows::{KvPart, KvTensor},
};
use crate::ort::{Binding, Tensor};

/// The KV cache of one executor.
pub(super) enum KvCache {
    /// Rows in the host's memory. Neighbouring rows run as one batch.
    Host(HostKvCache),
    /// Tensors in the device's memory, separate for each slot.
    Device(DeviceKvCache),
}

impl KvCache {
    /// Returns the maximum number of slots in one run.
    pub(super) fn max_rows(&self, batch: usize) -> usize {
        match self {
            Self::Host(_) => batch,
            Self::Device(_) => 1,
        }
    }

    /// Returns the number of tokens in a slot.
    pub(super) fn length(&self, slot: SlotId) -> usize {
        match self {
            Self::Host(cache) => cache.length(slot),
            Self::Device(cache) => cache.length(slot),
        }
    }

    /// Sets the number of tokens in a slot.
    pub(super) fn set_length(&mut self, slot: SlotId, length: usize) {
        match self {
            Self::Host(cache) => cache.set_length(slot, length),
            Self::Device(cache) => cache.set_length(slot, length),
        }
    }

    /// Returns the row of a slot, which must be reserved.
    pub(super) fn row(&self, slot: SlotId) -> usize {
        match self {
            Self::Host(cache) => cache.row(slot),
            Self::Device(_) => slot.index(),
        }
    }

    /// Moves the rows of these slots next to each other and returns the first of them.
    pub(super) fn gather(&mut self, slots: &[SlotId]) -> usize {
        match self {
            Self::Host(cache) => cache.gather(slots),
            Self::Device(_) => slots.first().map_or(0, |slot| slot.index()),
        }
    }

    /// Returns a number that changes whenever rows move in memory.
    pub(super) fn generation(&self) -> u64 {
        match self {
            Self::Host(cache) => cache.generation(),
            Self::Device(cache) => cache.generation(),
        }
    }

    /// Keeps the first `length` tokens of a slot.
    pub(super) fn truncate(&mut self, slot: SlotId, length: usize) {
        match self {
            Self::Host(cache) => cache.truncate(slot, length),
            Self::Device(cache) => cache.truncate(slot, length),
        }
    }

    /// Allocates room in each slot for its length.
    pub(super) fn reserve(
        &mut self,
        wanted: impl Iterator<Item = (SlotId, usize)> + Clone,
    ) -> Result<(), StepError> {
        match self {
            Self::Host(cache) => cache.reserve(wanted),
            Self::Device(cache) => cache.reserve(wanted),
        }
    }

    /// Allocates room in a slot for copied tokens.
    pub(super) fn reserve_copy(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        match self {
            Self::Host(cache) => cache.reserve([(copy.to, copy.tokens.end)].into_iter()),
            Self::Device(cache) => cache.reserve_copy(copy),
        }
    }

    /// Writes `[heads, tokens, head_size]` to a row of a cache in the host's memory and in single precision, at these
    /// tokens.
    pub(super) fn place(&mut self, tensor: KvTensor, row: usize, tokens: Range<usize>, values: &[f32]) {
        match self {
            Self::Host(cache) => cache.place(tensor, row, tokens, values),
            // The cache of a graph that returns only new keys and values is in the host's memory.
            Self::Device(_) => {}
        }
    }

    /// Returns some of a slot's tokens in a tensor, as `[tokens, heads, head_size]`.
    pub(super) fn read(
        &self,
        tensor: KvTensor,
        slot: SlotId,
        range: Range<usize>,
    ) -> Result<KvRows, StepError> {
        match self {
            Self::Host(cache) => Ok(cache.read(tensor, slot, range)),
            Self::Device(cache) => cache.read(tensor, slot, range),
        }
    }

    /// Writes `[tokens, heads, head_size]` to a reserved row, starting at token `at`.
    pub(super) fn write(
        &mut self,
        tensor: KvTensor,
        slot: SlotId,
        at: usize,
        rows: &KvRows,
    ) -> Result<(), StepError> {
        match self {
            Self::Host(cache) => cache.write(tensor, slot, at, rows),
            Self::Device(cache) => cache.write(tensor, slot, at, rows),
        }
    }

    /// Copies tokens to another slot, which must be reserved.
    pub(super) fn copy(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        match self {
            Self::Host(cache) => {
                cache.copy(copy);
                Ok(())
            }
            Self::Device(cache) => cache.copy(copy),
        }
    }

    /// Binds some rows. If the graph returns the whole cache, each buffer is bound as both past and present. If it
    /// returns only the new keys and values of `sequence` tokens, these are bound to the buffers `new`, one pair for
    /// each layer.
    ///
    /// # Safety
    /// The buffers must not move. Once [`Self::generation`] has changed, the rows must be bound again before the next
    /// run.
    pub(super) unsafe fn bind(
        &mut self,
        binding: &mut Binding,
        names: &DecoderNames,
        rows: Range<usize>,
        sequence: usize,
        new: &mut [[Vec<f32>; 2]],
    ) -> Result<(), StepError> {
        let batch = rows.len();
        for (layer, parts) in names.cache.iter().enumerate() {
            for (part, names) in KvPart::BOTH.into_iter().zip(parts) {
                let cache = match self {
                    Self::Host(cache) => cache,
                    Self::Device(cache) => {
                        let tensor = &cache.tensors(rows.start, layer)[part as usize];
                        binding.in_place(&names.past, names.present.iter().map(|name| &**name), tensor)?;
                        continue;
                    }
                };

                let layout = cache.layout(layer);
                let KvLayout { heads, head_size, dtype, .. } = *layout;
                let row = layout.row_elements();
                let shape = [batch, heads, cache.capacity(), row].map(|extent| extent as i64);
                let past = cache.rows_mut(KvTensor { layer, part }, rows.clone());
                let past = Tensor::of_bytes(past, dtype, &shape);
                // SAFETY: the memory does not move until the generation changes.
                unsafe { binding.input(&names.past, past) }?;
                let new_shape = [batch, heads, sequence, head_size].map(|extent| extent as i64);
                let present = match new.get_mut(layer) {
                    Some(new) => {
                        let new = &mut new[part as usize];
                        new.resize(batch * heads * sequence * head_size, 0.0);
                        Tensor::new(new, DType::F32, &new_shape)
                    }
                    None => past,
                };

                for name in &names.present {
                    // SAFETY: as for the past; the caller guarantees that the buffers do not move.
                    unsafe { binding.output(name, present) }?;
                }
            }
        }
        Ok(())
    }
}
