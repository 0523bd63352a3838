//! Checkpoints of the states of a slot. Layers with a recurrent state, such as those of a gated delta rule, keep one state
//! for all tokens so far. It cannot be computed back to an earlier token, so that earlier states are kept.

/// Earlier states of a slot, each after a number of its first tokens. There are at most [`Self::MOST`].
#[derive(Debug, Clone)]
pub struct Checkpoints<S> {
    /// Lengths with their states, shortest first.
    states: Vec<(usize, S)>,
}

impl<S> Default for Checkpoints<S> {
    fn default() -> Self {
        Self { states: Vec::new() }
    }
}

impl<S: Clone> Checkpoints<S> {
    /// Maximum number of checkpoints of a slot.
    pub const MOST: usize = 4;

    /// Adds a checkpoint after the present ones. If there are too many, one of the older ones is removed.
    pub fn add(&mut self, length: usize, state: S) {
        if length == 0 || self.states.last().is_some_and(|(last, _)| *last >= length) {
            return;
        }
        self.states.push((length, state));
        if self.states.len() > Self::MOST {
            self.states.remove(self.least());
        }
    }

    /// Returns the largest length of a checkpoint that is at most `length`, or 0.
    pub fn longest(&self, length: usize) -> usize {
        self.states.iter().map(|(own, _)| *own).rfind(|own| *own <= length).unwrap_or(0)
    }

    /// Returns the state of a checkpoint.
    pub fn get(&self, length: usize) -> Option<&S> {
        self.states.iter().find(|(own, _)| *own == length).map(|(_, state)| state)
    }

    /// Removes the checkpoints after more than `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        self.states.retain(|(own, _)| *own <= length);
    }

    /// Returns the checkpoint whose removal costs least: the number of tokens that would run again, times the number of
    /// lengths for which they would, divided by the distance from the end, because late changes are more frequent. The
    /// last two always stay, because the next prompt of a conversation differs in the last tokens.
    fn least(&self) -> usize {
        let older = 0..self.states.len() - 2;
        older.min_by(|&a, &b| self.cost(a).total_cmp(&self.cost(b))).unwrap_or(0)
    }

    fn cost(&self, index: usize) -> f64 {
        let length = self.states[index].0;
        let again = length - index.checked_sub(1).map_or(0, |before| self.states[before].0);
        let lengths = self.states[index + 1].0 - length;
        let distance = self.states.last().map_or(1, |(last, _)| *last - length);
        again as f64 * lengths as f64 / distance as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(checkpoints: &Checkpoints<usize>) -> Vec<usize> {
        assert!(checkpoints.states.iter().all(|(length, state)| length == state));
        checkpoints.states.iter().map(|(length, _)| *length).collect()
    }

    #[test]
    fn a_slot_is_cut_to_the_last_checkpoint_before_a_length() {
        let mut checkpoints = Checkpoints::default();
        [0, 10, 30, 30, 20].into_iter().for_each(|length| checkpoints.add(length, length));
        assert_eq!(lengths(&checkpoints), [10, 30]);
        assert_eq!([9, 10, 29, 30, 99].map(|length| checkpoints.longest(length)), [0, 10, 10, 30, 30]);
        assert_eq!((checkpoints.get(30), checkpoints.get(29)), (Some(&30), None));
        checkpoints.truncate(29);
        assert_eq!(lengths(&checkpoints), [10]);
    }

    #[test]
    fn older_checkpoints_are_farther_apart() {
        let mut checkpoints = Checkpoints::default();
        for length in (1..=64).map(|step| 16 * step) {
            checkpoints.add(length, length);
            let found = lengths(&checkpoints);
            assert!(found.len() <= Checkpoints::<usize>::MOST, "{found:?}");
            // At most two thirds of the tokens before any length run again.
            let ends = found.iter().skip(1).chain([&length]);
            let gaps = [0].into_iter().chain(found.iter().copied()).zip(found.iter().take(1).chain(ends));
            gaps.for_each(|(start, &end)| assert!(3 * (end - start) <= 2 * length.max(24), "{found:?}"));
            assert!(found.ends_with(&[length]) && found.contains(&(length - 16).max(16)), "{found:?}");
        }
    }

    #[test]
    fn a_long_beginning_stays_and_a_short_one_does_not() {
        let after = |beginning: usize| {
            let mut checkpoints = Checkpoints::default();
            let turns = (1..9).map(|turn| beginning + 1000 * turn);
            let lengths = [beginning].into_iter().chain(turns.flat_map(|turn| [turn, turn + 16]));
            lengths.for_each(|length| checkpoints.add(length, length));
            self::lengths(&checkpoints)[0]
        };
        assert_eq!(after(10_000), 10_000);
        assert!(after(100) > 1000);
    }
}
