//! Entries of a decoder's cache in the form in which they are handed over: keys and values, or the rows of a convolution.

use std::ops::Range;

use narthex_engine::executor::{KvLayer, KvRows, StepError};
use narthex_spec::SlotId;

use super::{
    DynamicExecutor,
    rows::{KvPart, KvTensor},
};

/// Place of an entry of the cache.
enum EntryPlace {
    /// Index among the keys and values.
    Attention(usize),
    /// Index among the convolutions.
    Convolution(usize),
}

impl DynamicExecutor {
    /// Returns some tokens of an entry as keys and values.
    pub(super) fn read_entry(
        &self,
        entry: usize,
        slot: SlotId,
        range: Range<usize>,
    ) -> Result<[KvRows; 2], StepError> {
        match self.place(entry) {
            EntryPlace::Attention(layer) => {
                let [keys, values] = [KvPart::Key, KvPart::Value]
                    .map(|part| self.memory.cache.read(KvTensor { layer, part }, slot, range.clone()));
                Ok([keys?, values?])
            }
            EntryPlace::Convolution(index) => {
                Ok(self.memory.convolutions.read_halves(slot, index, range).map(KvRows::F32))
            }
        }
    }

    /// Writes keys and values of an entry from token `at` on. The slot's memory must be reserved.
    pub(super) fn write_entry(
        &mut self,
        entry: usize,
        slot: SlotId,
        at: usize,
        block: &KvLayer,
    ) -> Result<(), StepError> {
        match self.place(entry) {
            EntryPlace::Attention(layer) => {
                self.memory.cache.write(KvTensor { layer, part: KvPart::Key }, slot, at, &block.keys)?;
                self.memory.cache.write(KvTensor { layer, part: KvPart::Value }, slot, at, &block.values)
            }
            EntryPlace::Convolution(index) => {
                let halves = [&block.keys, &block.values].map(KvRows::to_f32);
                self.memory.convolutions.write_halves(slot, index, at, halves.each_ref().map(Vec::as_slice))
            }
        }
    }

    /// Returns the place of an entry.
    fn place(&self, entry: usize) -> EntryPlace {
        match self.memory.convolutions.index(entry) {
            Some(index) => EntryPlace::Convolution(index),
            None => {
                let before = (0..entry).filter(|&other| self.memory.convolutions.index(other).is_none());
                EntryPlace::Attention(before.count())
            }
        }
    }
}
