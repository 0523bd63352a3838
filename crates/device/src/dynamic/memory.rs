//! Memory of an executor's sequences: keys and values, rows of short convolutions, and states.

use narthex_engine::executor::{KvCopy, Limits, Span, StepError};
use narthex_spec::{
    DType, Ep, SlotId,
    manifest::{KvContent, KvLayout},
};

use super::{
    device_cache::DeviceKvCache,
    growth::Growth,
    host_cache::HostKvCache,
    kv_cache::KvCache,
    names::{CacheOutput, DecoderNames},
};
use crate::{
    convolution_rows::ConvolutionRows,
    ep::Device,
    error::DeviceError,
    ort::{DeviceMemory, DevicePadding, Session, SessionOptions},
    runtime::Runtime,
    states::SlotStates,
};

/// Memory of the sequences in all slots.
pub(super) struct SequenceMemory {
    /// Keys and values.
    pub(super) cache: KvCache,
    /// Rows of short convolutions.
    pub(super) convolutions: ConvolutionRows<f32>,
    /// States of layers that have one.
    pub(super) states: SlotStates,
}

impl SequenceMemory {
    /// Creates empty memory for a graph with these entries of the cache.
    pub(super) fn new(
        runtime: &'static Runtime,
        device: &Device,
        session: &Session,
        names: &DecoderNames,
        kv: &[KvLayout],
        limits: &Limits,
    ) -> Result<Self, DeviceError> {
        let attention = kv.iter().filter(|layer| layer.content == KvContent::KeysAndValues);
        let attention: Vec<KvLayout> = attention.cloned().collect();
        let own = names.cache.first().map(|[keys, _]| DeviceMemory::of_input(runtime, session, &keys.past));
        let cache = match own.transpose().map_err(DeviceError::binding)?.flatten() {
            // If a graph returns only new keys and values, the host writes them to the cache.
            Some(memory) if names.cache_output == CacheOutput::Present => {
                let dtype = attention.first().map_or(DType::F32, |layer| layer.dtype);
                let padding = DevicePadding::new(runtime, dtype, SessionOptions::on(device, 1))?;
                let clears_memory = device.ep() == Ep::Cuda;
                KvCache::Device(DeviceKvCache::new(&attention, limits, memory, padding, clears_memory))
            }
            _ => {
                let growth =
                    if names.cache_output == CacheOutput::New { Growth::Eighth } else { Growth::Double };
                KvCache::Host(HostKvCache::new(&attention, limits, growth))
            }
        };

        Ok(Self {
            cache,
            convolutions: ConvolutionRows::new(kv, limits.slots),
            states: SlotStates::new(kv, limits.slots),
        })
    }

    /// Records the tokens of a span that has run.
    pub(super) fn commit(&mut self, span: &Span) {
        self.cache.set_length(span.slot, span.at + span.tokens.len());
        self.states.commit(span.slot, span.keeps_state);
    }

    /// Keeps the first `length` tokens of a slot.
    ///
    /// # Errors
    /// [`StepError::CannotRewind`] without states after so many tokens leaves the slot unchanged.
    pub(super) fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), StepError> {
        self.states.truncate(slot, length)?;
        self.cache.truncate(slot, length);
        self.convolutions.truncate(slot, length);
        Ok(())
    }

    /// Copies keys, values and rows to another slot, which must be reserved.
    pub(super) fn copy(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        self.cache.copy(copy)?;
        self.convolutions.copy(copy)
    }

    /// Refuses to hand over tokens of slots with states, because blocks have only keys and values.
    pub(super) fn check_handover(&self) -> Result<(), StepError> {
        if self.states.is_empty() {
            return Ok(());
        }
        Err(StepError::bad_plan("layers with states cannot hand over single tokens"))
    }
}
