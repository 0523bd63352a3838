//! The KV cache in a device's own memory. Each slot has two tensors per layer, `[1, heads, capacity, head_size]`, which
//! hold both the past and the present. Attention on a GPU would treat a past in the host's memory as full to its
//! capacity.
//!
//! ONNX Runtime copies only whole tensors and does not expose addresses within a device's memory. The contents of a
//! slot are therefore copied through the host's memory when its capacity grows, and when a block is written after other
//! tokens.

use std::ops::Range;

use narthex_engine::executor::{KvCopy, KvRows, Limits, StepError};
use narthex_spec::{SlotId, manifest::KvLayout};

use super::{
    growth::{Growth, Resize, SlotUse, make_room},
    rows::{KvPart, KvTensor, RowShape},
};
use crate::ort::{DeviceMemory, DeviceTensor};

/// The cache of one executor.
pub(super) struct DeviceKvCache {
    layers: Vec<KvLayout>,
    limits: Limits,
    slots: Vec<SlotTensors>,
    /// Number that changes whenever the tensors of a slot are replaced.
    generation: u64,
    memory: DeviceMemory,
}

#[derive(Default)]
struct SlotTensors {
    length: usize,
    capacity: usize,
    /// Keys and values of each layer.
    layers: Vec<[DeviceTensor; 2]>,
}

impl DeviceKvCache {
    pub(super) fn new(layouts: &[KvLayout], limits: &Limits, memory: DeviceMemory) -> Self {
        Self {
            layers: layouts.to_vec(),
            limits: limits.clone(),
            slots: (0..limits.slots).map(|_| SlotTensors::default()).collect(),
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

    /// Returns a layer's tensors of a row. The row is the slot's number.
    pub(super) fn tensors(&self, row: usize, layer: usize) -> &[DeviceTensor; 2] {
        &self.slots[row].layers[layer]
    }

    /// Returns a slot's tokens in a layer and part, as `[tokens, heads, head_size]`.
    pub(super) fn read(
        &self,
        tensor: KvTensor,
        slot: SlotId,
        range: Range<usize>,
    ) -> Result<KvRows, StepError> {
        let held = &self.slots[slot.index()];
        let data = self.memory.read(&held.layers[tensor.layer][tensor.part as usize])?;
        Ok(KvRows::F32(self.row(tensor.layer, held.capacity).read(&data, range)))
    }

    /// Writes `[tokens, heads, head_size]` to a reserved slot, starting at token `at`.
    pub(super) fn write(
        &mut self,
        tensor: KvTensor,
        slot: SlotId,
        at: usize,
        rows: &KvRows,
    ) -> Result<(), StepError> {
        let KvTensor { layer, part } = tensor;
        let row = self.row(layer, self.slots[slot.index()].capacity);
        let tensor = &mut self.slots[slot.index()].layers[layer][part as usize];
        // If the block is the first, there are no earlier tokens to keep.
        let mut data = if at == 0 { vec![0.0; row.len()] } else { self.memory.read(tensor)? };
        row.write(&mut data, at, rows.f32s());
        self.memory.write(tensor, &mut data)
    }

    /// Copies tokens to another slot, which must be reserved.
    pub(super) fn copy(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        for layer in 0..self.layers.len() {
            for part in KvPart::BOTH {
                let tensor = KvTensor { layer, part };
                let rows = self.read(tensor, copy.from, copy.tokens.clone())?;
                self.write(tensor, copy.to, copy.tokens.start, &rows)?;
            }
        }
        Ok(())
    }

    fn row(&self, layer: usize, capacity: usize) -> RowShape {
        let KvLayout { heads, head_size, .. } = self.layers[layer];
        RowShape { heads, capacity, head_size }
    }

    /// Keeps the first `length` tokens. The memory of an empty slot is released.
    pub(super) fn truncate(&mut self, slot: SlotId, length: usize) {
        let held = &mut self.slots[slot.index()];
        held.length = length;
        if length == 0 {
            *held = SlotTensors::default();
            self.generation += 1;
        }
    }

    /// Allocates room in each slot for its length. After an error, all slots have their previous contents.
    pub(super) fn reserve(
        &mut self,
        wanted: impl Iterator<Item = (SlotId, usize)> + Clone,
    ) -> Result<(), StepError> {
        for (slot, length) in wanted.clone() {
            if length <= self.slots[slot.index()].capacity {
                continue;
            }
            let mut uses: Vec<SlotUse> = (self.slots.iter())
                .map(|held| SlotUse { capacity: held.capacity, tokens: held.length })
                .collect();
            for (slot, length) in wanted.clone() {
                let tokens = &mut uses[slot.index()].tokens;
                *tokens = length.max(*tokens);
            }
            for resize in make_room(&self.limits, Growth::Double, &uses, slot.index())? {
                self.resize(resize)?;
            }
        }
        Ok(())
    }

    /// Changes the capacity of a slot's tensors and keeps their contents. On an error, the slot is unchanged.
    fn resize(&mut self, Resize { slot, capacity }: Resize) -> Result<(), StepError> {
        let held = &self.slots[slot];
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in 0..self.layers.len() {
            let (old_row, new_row) = (self.row(layer, held.capacity), self.row(layer, capacity));
            let RowShape { heads, head_size, .. } = new_row;
            let shape = [1, heads as i64, capacity as i64, head_size as i64];
            let mut parts = [self.memory.tensor(&shape)?, self.memory.tensor(&shape)?];
            if held.length > 0 {
                for (old, new) in held.layers[layer].iter().zip(&mut parts) {
                    let old = self.memory.read(old)?;
                    let mut data = vec![0.0; new_row.len()];
                    old_row.copy(&old, new_row, &mut data, held.length);
                    self.memory.write(new, &mut data)?;
                }
            }
            layers.push(parts);
        }
        let length = held.length;
        self.slots[slot] = SlotTensors { length, capacity, layers };
        self.generation += 1;
        Ok(())
    }
}
