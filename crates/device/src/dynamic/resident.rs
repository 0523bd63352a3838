//! The KV cache in a device's own memory: each slot has two tensors per layer, `[1, heads, capacity, head_size]`, past
//! and present at once. Attention on a GPU takes a past of the host's memory for full to its capacity.
//!
//! A slot's capacity grows in steps; what it holds then goes through the host's memory into larger tensors.

use std::ops::Range;

use narthex_engine::executor::{Limits, StepError};
use narthex_spec::{SlotId, manifest::KvLayout};

use super::cache::{Move, Part, copy_rows, put_tokens, tokens_of};
use crate::ort::{DeviceMemory, DeviceTensor};

/// The cache of one executor.
pub(super) struct Resident {
    /// Heads and head size of each layer.
    shapes: Vec<(usize, usize)>,
    limits: Limits,
    slots: Vec<Held>,
    /// Changes whenever a slot gets other tensors.
    generation: u64,
    memory: DeviceMemory,
}

/// What a slot has.
#[derive(Default)]
struct Held {
    length: usize,
    capacity: usize,
    /// Keys and values of each layer.
    layers: Vec<[DeviceTensor; 2]>,
}

impl Resident {
    pub(super) fn new(layouts: &[KvLayout], limits: &Limits, memory: DeviceMemory) -> Self {
        Self {
            shapes: layouts.iter().map(|layout| (layout.heads, layout.head_size)).collect(),
            limits: limits.clone(),
            slots: (0..limits.slots).map(|_| Held::default()).collect(),
            generation: 0,
            memory,
        }
    }

    pub(super) fn length(&self, slot: SlotId) -> usize {
        self.slots[slot.index()].length
    }

    pub(super) fn set_length(&mut self, slot: SlotId, length: usize) {
        self.slots[slot.index()].length = length;
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// A layer's tensors of a row, which is a slot's number.
    pub(super) fn tensors(&self, row: usize, layer: usize) -> &[DeviceTensor; 2] {
        &self.slots[row].layers[layer]
    }

    /// A slot's tokens in a layer and part, as `[tokens, heads, head_size]`.
    pub(super) fn read(
        &self,
        (layer, part): (usize, Part),
        slot: SlotId,
        range: Range<usize>,
    ) -> Result<Vec<f32>, StepError> {
        let held = &self.slots[slot.index()];
        let data = self.memory.read(&held.layers[layer][part as usize])?;
        Ok(tokens_of(&data, held.capacity, self.shapes[layer], range))
    }

    /// Puts `[tokens, heads, head_size]` into a slot that was reserved, from token `at` on.
    pub(super) fn write(
        &mut self,
        (layer, part): (usize, Part),
        slot: SlotId,
        at: usize,
        values: impl Iterator<Item = f32>,
    ) -> Result<(), StepError> {
        let held = &mut self.slots[slot.index()];
        let tensor = &mut held.layers[layer][part as usize];
        let mut data = self.memory.read(tensor)?;
        put_tokens((&mut data, held.capacity), self.shapes[layer], at, values);
        self.memory.write(tensor, &mut data)
    }

    /// Keeps the first `length` tokens; a slot without any has no memory.
    pub(super) fn truncate(&mut self, slot: SlotId, length: usize) {
        let held = &mut self.slots[slot.index()];
        held.length = length;
        if length == 0 {
            *held = Held::default();
            self.generation += 1;
        }
    }

    /// Gives each slot room for its length.
    pub(super) fn reserve(&mut self, wanted: impl Iterator<Item = (SlotId, usize)>) -> Result<(), StepError> {
        for (slot, length) in wanted {
            if length > self.slots[slot.index()].capacity {
                self.grow(slot, self.limits.kv.capacity_for(length, self.limits.context))?;
            }
        }
        Ok(())
    }

    /// Gives a slot tensors of another capacity, with what it holds. After an error all is as it was.
    fn grow(&mut self, slot: SlotId, capacity: usize) -> Result<(), StepError> {
        let kv = self.limits.kv;
        let others = self.slots.iter().enumerate().filter(|(index, _)| *index != slot.index());
        let taken: usize = others.map(|(_, held)| kv.bytes(1, held.capacity)).sum();
        let wanted = taken.saturating_add(kv.bytes(1, capacity));
        if wanted > kv.budget {
            let rows = 1 + self.slots.iter().filter(|held| held.capacity > 0).count();
            return Err(StepError::OutOfMemory { rows, capacity, wanted });
        }
        let held = &self.slots[slot.index()];
        let mut layers = Vec::with_capacity(self.shapes.len());
        for (layer, &(heads, size)) in self.shapes.iter().enumerate() {
            let shape = [1, heads as i64, capacity as i64, size as i64];
            let mut parts = [self.memory.tensor(&shape)?, self.memory.tensor(&shape)?];
            if held.length > 0 {
                for (old, new) in held.layers[layer].iter().zip(&mut parts) {
                    let old = self.memory.read(old)?;
                    let mut data = vec![0.0; heads * capacity * size];
                    let all = [Move { slot: slot.index(), from: 0, length: held.length }];
                    copy_rows((&old, held.capacity), (&mut data, capacity), (heads, size), &all);
                    self.memory.write(new, &mut data)?;
                }
            }
            layers.push(parts);
        }
        let length = held.length;
        self.slots[slot.index()] = Held { length, capacity, layers };
        self.generation += 1;
        Ok(())
    }
}
