//! States of layers whose memory of a sequence has a fixed size, such as those of recurrences. For each slot, the
//! host's memory has the states after all of its tokens, and a few after fewer tokens ([`Checkpoints`]).
//!
//! A step writes its states beside those before it. They take their place only when the whole step has run, so that a
//! failed step leaves the states of its slots unchanged. States are shared by checkpoints and slots, and never change.

use std::{ops::Range, sync::Arc};

use narthex_engine::executor::{Checkpoints, KvCopy, StepError};
use narthex_spec::{
    SlotId,
    manifest::{KvLayout, RecurrentStateShape},
};

/// Number of states that a slot has besides its checkpoints: those before and after a step, and as inputs and outputs of
/// the graph.
const WORKING_STATES: usize = 4;

/// Returns the maximum number of bytes of the states of one slot, or `usize::MAX` on overflow; 0 if no layer has one.
pub fn bytes_per_slot(kv: &[KvLayout]) -> usize {
    let shapes = kv.iter().filter_map(KvLayout::recurrent_state);
    let bytes = shapes.map(|shape| shape.bytes()).fold(0, usize::saturating_add);
    bytes.saturating_mul(WORKING_STATES + Checkpoints::<()>::MOST)
}

/// One of the two tensors of a layer's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatePart {
    Recurrent = 0,
    Convolution = 1,
}

impl StatePart {
    pub(crate) const BOTH: [Self; 2] = [Self::Recurrent, Self::Convolution];
}

/// States of all slots.
pub(crate) struct SlotStates {
    shapes: Vec<RecurrentStateShape>,
    /// Places of each layer's tensors among the elements of a state.
    places: Vec<[Range<usize>; 2]>,
    slots: Vec<SlotState>,
}

/// States of one slot. Without [`Self::now`], it has no tokens, and all elements are zero.
#[derive(Default)]
struct SlotState {
    now: Option<SequenceState>,
    /// States after tokens of the step that runs.
    next: Option<SequenceState>,
    checkpoints: Checkpoints<Arc<Vec<f32>>>,
}

/// States of all layers after the first tokens of a sequence.
#[derive(Clone)]
struct SequenceState {
    /// Number of these tokens.
    length: usize,
    elements: Arc<Vec<f32>>,
}

impl SlotStates {
    /// Creates the states of the layers among the entries of a cache.
    pub(crate) fn new(layouts: &[KvLayout], slots: usize) -> Self {
        let shapes: Vec<RecurrentStateShape> = layouts.iter().filter_map(KvLayout::recurrent_state).collect();
        let mut end = 0;
        let mut place = |extents: &[usize]| {
            let start = end;
            end += extents.iter().product::<usize>();
            start..end
        };
        let places =
            shapes.iter().map(|shape| [place(&shape.recurrent), place(&shape.convolution)]).collect();
        Self { shapes, places, slots: (0..slots).map(|_| SlotState::default()).collect() }
    }

    /// Returns true if no layer has a state.
    pub(crate) fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// Returns the extents of a tensor of the layer `index` for one sequence.
    pub(crate) fn extents(&self, index: usize, part: StatePart) -> &[usize] {
        match part {
            StatePart::Recurrent => &self.shapes[index].recurrent,
            StatePart::Convolution => &self.shapes[index].convolution,
        }
    }

    /// Copies a tensor of the state after the first `at` tokens of a slot, which has run them.
    pub(crate) fn read(&self, slot: SlotId, at: usize, index: usize, part: StatePart, out: &mut [f32]) {
        let SlotState { now, next, .. } = &self.slots[slot.index()];
        match [next, now].into_iter().flatten().find(|state| state.length == at) {
            Some(state) => out.copy_from_slice(&state.elements[self.places[index][part as usize].clone()]),
            None => out.fill(0.0),
        }
    }

    /// Makes room for the states after `length` tokens of a slot, which [`Self::write`] fills.
    ///
    /// # Errors
    /// [`StepError::OutOfMemory`] leaves the slot unchanged.
    pub(crate) fn begin(&mut self, slot: SlotId, length: usize) -> Result<(), StepError> {
        let count = self.places.last().map_or(0, |[_, convolution]| convolution.end);
        let next = &mut self.slots[slot.index()].next;
        let unused = next.take().filter(|next| Arc::strong_count(&next.elements) == 1);
        let elements = match unused {
            Some(unused) => unused.elements,
            None => {
                let mut elements = Vec::new();
                elements.try_reserve_exact(count).map_err(|_| StepError::OutOfMemory {
                    rows: 1,
                    capacity: length,
                    wanted: count * size_of::<f32>(),
                })?;
                elements.resize(count, 0.0);
                Arc::new(elements)
            }
        };
        *next = Some(SequenceState { length, elements });
        Ok(())
    }

    /// Writes a tensor of the states for which [`Self::begin`] made room.
    pub(crate) fn write(&mut self, slot: SlotId, index: usize, part: StatePart, elements: &[f32]) {
        let next = self.slots[slot.index()].next.as_mut();
        if let Some(next) = next.and_then(|next| Arc::get_mut(&mut next.elements)) {
            next[self.places[index][part as usize].clone()].copy_from_slice(elements);
        }
    }

    /// Replaces the states of a slot by those of a step that has run, and makes a checkpoint of them if it is wanted.
    pub(crate) fn commit(&mut self, slot: SlotId, keeps_state: bool) {
        let SlotState { now, next, checkpoints } = &mut self.slots[slot.index()];
        std::mem::swap(now, next);
        if let Some(now) = now.as_ref().filter(|_| keeps_state) {
            checkpoints.add(now.length, now.elements.clone());
        }
        // The memory of the states before the step is used by the next one.
        next.iter_mut().for_each(|unused| unused.length = usize::MAX);
    }

    /// Returns the largest length, at most `length`, to which a slot can be cut.
    pub(crate) fn rewind_length(&self, slot: SlotId, length: usize) -> usize {
        let state = &self.slots[slot.index()];
        match &state.now {
            _ if self.is_empty() => length,
            Some(now) if now.length <= length => now.length,
            Some(_) => state.checkpoints.longest(length),
            None => 0,
        }
    }

    /// Keeps the first `length` tokens of a slot. The memory of an empty slot is released.
    ///
    /// # Errors
    /// [`StepError::CannotRewind`] without states after so many tokens leaves the slot unchanged.
    pub(crate) fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), StepError> {
        if self.is_empty() {
            return Ok(());
        }
        let now = self.state_at(slot, length)?;
        let state = &mut self.slots[slot.index()];
        if now.is_none() {
            *state = SlotState::default();
        }
        state.now = now;
        state.next = None;
        state.checkpoints.truncate(length);
        Ok(())
    }

    /// Checks that a slot has states after the last of some tokens.
    ///
    /// # Errors
    /// [`StepError::BadPlan`] if it does not.
    pub(crate) fn check_copy(&self, copy: &KvCopy) -> Result<(), StepError> {
        let KvCopy { from, tokens, .. } = copy;
        if self.is_empty() || self.state_at(*from, tokens.end).is_ok() {
            return Ok(());
        }
        let found = tokens.end;
        Err(StepError::bad_plan(format!(
            "expected a copy up to a checkpoint of slot {}, found {found} tokens",
            from.0
        )))
    }

    /// Copies the states after the last of some tokens, and the checkpoints before, to another slot.
    ///
    /// # Errors
    /// [`StepError::CannotRewind`] without states after so many tokens leaves the slots unchanged.
    pub(crate) fn copy(&mut self, copy: &KvCopy) -> Result<(), StepError> {
        if self.is_empty() {
            return Ok(());
        }
        let now = self.state_at(copy.from, copy.tokens.end)?;
        let mut checkpoints = self.slots[copy.from.index()].checkpoints.clone();
        checkpoints.truncate(copy.tokens.end);
        self.slots[copy.to.index()] = SlotState { now, next: None, checkpoints };
        Ok(())
    }

    /// Returns the states after the first `length` tokens of a slot; `None` for those before the first token.
    fn state_at(&self, slot: SlotId, length: usize) -> Result<Option<SequenceState>, StepError> {
        let state = &self.slots[slot.index()];
        if length == 0 {
            return Ok(None);
        }
        if let Some(now) = state.now.as_ref().filter(|now| now.length == length) {
            return Ok(Some(now.clone()));
        }
        let elements = state.checkpoints.get(length).ok_or(StepError::CannotRewind)?.clone();
        Ok(Some(SequenceState { length, elements }))
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::{GatedDeltaRule, KeyHeadOrder, Recurrence};

    use super::*;

    const SLOT: SlotId = SlotId(1);

    const RULE: GatedDeltaRule = GatedDeltaRule {
        key_heads: 1,
        value_heads: 2,
        key_order: KeyHeadOrder::Grouped,
        key_size: 3,
        value_size: 1,
        kernel: 3,
    };

    fn states() -> SlotStates {
        let layouts = [
            KvLayout::recurrence(Recurrence::DeltaRule(&RULE)),
            KvLayout::plain(2, 3),
            KvLayout::recurrence(Recurrence::DeltaRule(&RULE)),
        ];
        SlotStates::new(&layouts, 3)
    }

    /// Runs a span whose states have this value everywhere.
    fn run(states: &mut SlotStates, slot: SlotId, length: usize, value: f32) {
        states.begin(slot, length).unwrap();
        for index in 0..2 {
            for part in StatePart::BOTH {
                let count = states.extents(index, part).iter().product();
                states.write(slot, index, part, &vec![value + index as f32; count]);
            }
        }
    }

    fn value(states: &SlotStates, slot: SlotId, at: usize) -> f32 {
        let mut out = vec![9.0; 6];
        states.read(slot, at, 1, StatePart::Recurrent, &mut out);
        let mut rows = vec![9.0; 16];
        states.read(slot, at, 1, StatePart::Convolution, &mut rows);
        assert!(out.iter().chain(&rows).all(|value| *value == out[0]));
        out[0]
    }

    #[test]
    fn the_states_of_a_step_count_once_it_has_run() {
        let mut states = states();
        assert_eq!((value(&states, SLOT, 0), states.extents(1, StatePart::Convolution)), (0.0, &[2, 8][..]));
        run(&mut states, SLOT, 4, 0.5);
        // A step that has failed: its slot is truncated to its tokens before.
        states.truncate(SLOT, 0).unwrap();
        assert_eq!((value(&states, SLOT, 0), states.rewind_length(SLOT, 4)), (0.0, 0));
        run(&mut states, SLOT, 4, 1.5);
        states.commit(SLOT, false);
        run(&mut states, SLOT, 5, 2.5);
        assert_eq!((value(&states, SLOT, 4), value(&states, SLOT, 5)), (2.5, 3.5));
        states.truncate(SLOT, 4).unwrap();
        assert_eq!(value(&states, SLOT, 4), 2.5);
    }

    #[test]
    fn a_slot_goes_back_to_its_checkpoints_and_copies_have_them() {
        let mut states = states();
        for (length, keeps) in [(4, true), (8, false), (12, true), (13, false)] {
            run(&mut states, SLOT, length, length as f32);
            states.commit(SLOT, keeps);
        }
        assert_eq!([3, 4, 11, 12, 13, 20].map(|at| states.rewind_length(SLOT, at)), [0, 4, 4, 12, 13, 13]);
        assert_eq!(states.truncate(SLOT, 8), Err(StepError::CannotRewind));
        let copy = |end| KvCopy { from: SLOT, to: SlotId(2), tokens: 0..end };
        let refused = states.check_copy(&copy(8)).unwrap_err().to_string();
        assert!(refused.contains("up to a checkpoint of slot 1, found 8 tokens"), "{refused}");
        states.check_copy(&copy(12)).unwrap();
        states.copy(&copy(12)).unwrap();
        run(&mut states, SlotId(2), 14, 0.25);
        states.commit(SlotId(2), false);
        // The states of a copy are its own.
        assert_eq!((value(&states, SLOT, 13), value(&states, SlotId(2), 14)), (14.0, 1.25));
        for slot in [SLOT, SlotId(2)] {
            states.truncate(slot, 12).unwrap();
            assert_eq!(value(&states, slot, 12), 13.0);
            states.truncate(slot, 4).unwrap();
            assert_eq!((value(&states, slot, 4), states.rewind_length(slot, 12)), (5.0, 4));
        }
    }

    #[test]
    fn bytes_are_those_of_all_states_of_a_slot() {
        let state = 4 * (6 + 2 * 8);
        assert_eq!(
            bytes_per_slot(&[KvLayout::recurrence(Recurrence::DeltaRule(&RULE)), KvLayout::plain(1, 2)]),
            8 * state
        );
        assert_eq!(bytes_per_slot(&[KvLayout::plain(1, 2)]), 0);
    }
}
