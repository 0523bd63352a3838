//! The KV cache in a device's own memory. Each slot has two tensors per layer, `[1, heads, capacity, head_size]`, which
//! hold both the past and the present. Attention on a GPU would treat a past in the host's memory as full to its
//! capacity.
//!
//! ONNX Runtime copies only whole tensors and does not expose addresses within a device's memory. The contents of a
//! slot are copied on the device when its capacity grows and when another slot gets its first tokens, and otherwise
//! through the host's memory: when a capacity shrinks, and when a block is read or written.

use std::ops::Range;

use half::f16;
use narthex_engine::executor::{KvCopy, KvRows, Limits, StepError};
use narthex_spec::{DType, SlotId, manifest::KvLayout};

use super::{
    growth::{Growth, Resize, SlotUse, make_room},
    rows::{KvPart, KvTensor, RowShape},
};
use crate::ort::{DeviceMemory, DevicePadding, DeviceTensor};

/// The cache of one executor.
pub(super) struct DeviceKvCache {
    layers: Vec<KvLayout>,
    limits: Limits,
    slots: Vec<SlotTensors>,
    /// Number that changes whenever the tensors of a slot are replaced.
    generation: u64,
    memory: DeviceMemory,
    padding: DevicePadding,
    clears_memory: bool,
}

#[derive(Default)]
struct SlotTensors {
    length: usize,
    capacity: usize,
    /// Keys and values of each layer.
    layers: Vec<[DeviceTensor; 2]>,
}

impl DeviceKvCache {
    /// Creates an empty cache. `padding` copies tensors of the cache's element type. If `clears_memory`, new memory is
    /// filled with zeros: the provider's attention reads beyond a row's tokens with a weight of zero, and the product
    /// with an undefined value could be NaN.
    pub(super) fn new(
        layouts: &[KvLayout],
        limits: &Limits,
        memory: DeviceMemory,
        padding: DevicePadding,
        clears_memory: bool,
    ) -> Self {
        Self {
            layers: layouts.to_vec(),
            limits: limits.clone(),
            slots: (0..limits.slots).map(|_| SlotTensors::default()).collect(),
            generation: 0,
            memory,
            padding,
            clears_memory,
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
        let row = self.row(tensor.layer, held.capacity);
        let source = &held.layers[tensor.layer][tensor.part as usize];
        Ok(match self.layers[tensor.layer].dtype {
            DType::F16 => KvRows::F16(row.read(&self.memory.read(source)?, range)),
            _ => KvRows::F32(row.read(&self.memory.read(source)?, range)),
        })
    }

    /// Writes `[tokens, heads, head_size]` to a reserved slot, starting at token `at`.
    pub(super) fn write(
        &mut self,
        tensor: KvTensor,
        slot: SlotId,
        at: usize,
        rows: &KvRows,
    ) -> Result<(), StepError> {
        match self.layers[tensor.layer].dtype {
            DType::F16 => self.write_elements(tensor, slot, at, &rows.to_f16()?),
            _ => self.write_elements(tensor, slot, at, &rows.to_f32()),
        }
    }

    fn write_elements<T: bytemuck::Pod>(
        &mut self,
        KvTensor { layer, part }: KvTensor,
        slot: SlotId,
        at: usize,
        elements: &[T],
    ) -> Result<(), StepError> {
        let row = self.row(layer, self.slots[slot.index()].capacity);
        let tensor = &mut self.slots[slot.index()].layers[layer][part as usize];
        // If the block is the first, there are no earlier tokens to keep.
        let mut data = if at == 0 { vec![T::zeroed(); row.len()] } else { self.memory.read(tensor)? };
        row.write(&mut data, at, elements);
        self.memory.write(tensor, &mut data)
    }

    /// Allocates room in a slot for copied tokens: as much as the source has if the copy can be made on the device, and
    /// what the tokens need if the budget does not allow more.
    pub(super) fn reserve_copy(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        let needed = copy.tokens.end;
        let source = if copy.tokens.start == 0 { self.slots[copy.from.index()].capacity } else { 0 };
        let whole = self.reserve([(copy.to, source.max(needed))].into_iter());
        whole.or_else(|_| self.reserve([(copy.to, needed)].into_iter()))
    }

    /// Copies tokens to another slot, which must be reserved.
    pub(super) fn copy(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        let from = copy.from.index();
        let to = copy.to.index();
        let replaces_all = copy.tokens.start == 0 && self.slots[to].length <= copy.tokens.end;
        if let Ok([source, target]) = self.slots.get_disjoint_mut([from, to])
            && replaces_all
            && source.capacity <= target.capacity
        {
            let layers = source.layers.iter().zip(&mut target.layers);
            let mut tensors = layers.flat_map(|(source, target)| source.iter().zip(target));
            return tensors.try_for_each(|(source, target)| self.padding.copy(source, target));
        }
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
            let old_row = self.row(layer, held.capacity);
            let new_row = self.row(layer, capacity);
            let RowShape { heads, head_size, .. } = new_row;
            let shape = [1, heads as i64, capacity as i64, head_size as i64];
            let dtype = self.layers[layer].dtype;
            let mut parts = [self.memory.tensor(dtype, &shape)?, self.memory.tensor(dtype, &shape)?];
            let old = held.layers.get(layer).filter(|_| held.length > 0);
            for (part, new) in parts.iter_mut().enumerate() {
                match (old.map(|old| &old[part]), dtype) {
                    (Some(old), _) if held.capacity <= capacity => self.padding.copy(old, new)?,
                    (None, _) if !self.clears_memory => {}
                    (old, DType::F16) => {
                        let mut data = self.resized::<f16>(old, old_row, new_row, held.length)?;
                        self.memory.write(new, &mut data)?;
                    }
                    (old, _) => {
                        let mut data = self.resized::<f32>(old, old_row, new_row, held.length)?;
                        self.memory.write(new, &mut data)?;
                    }
                }
            }
            layers.push(parts);
        }

        let length = held.length;
        self.slots[slot] = SlotTensors { length, capacity, layers };
        self.generation += 1;
        Ok(())
    }

    /// Returns the elements of a row with another capacity: the first `length` tokens of a tensor, if there is one, and
    /// zeros.
    fn resized<T: bytemuck::Pod>(
        &self,
        old: Option<&DeviceTensor>,
        old_row: RowShape,
        new_row: RowShape,
        length: usize,
    ) -> Result<Vec<T>, StepError> {
        let mut data = vec![T::zeroed(); new_row.len()];
        if let Some(old) = old {
            let old: Vec<T> = self.memory.read(old)?;
            old_row.copy(&old, new_row, &mut data, length);
        }
        Ok(data)
    }
}
