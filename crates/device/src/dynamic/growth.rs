//! Growth of a cache's capacity. It is geometric, so that the cost of copying is proportional to the contents, and
//! limited by the KV budget and the context.

use narthex_engine::executor::{KvLimits, Limits, StepError};

/// Growth factor of a capacity that is too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// Doubling, for attention that reads only the tokens in a row.
    Double,
    /// Growth by an eighth, for attention that reads rows to their capacity.
    Eighth,
}

impl Growth {
    /// Returns the new capacity of a row whose capacity is `current` and which needs room for `tokens`. It is at most
    /// `most`, unless the row needs more.
    pub(super) fn capacity(self, limits: &Limits, current: usize, tokens: usize, most: usize) -> usize {
        let kv = &limits.kv;
        let context = limits.context;
        let more = match self {
            Self::Double => current,
            Self::Eighth => current / 8,
        };
        let grown = kv.capacity_for(current.saturating_add(more), context);
        grown.min(most).max(kv.capacity_for(tokens, context))
    }
}

/// Returns the maximum capacity of `rows` rows that fits into `bytes` bytes.
pub(super) fn max_capacity(limits: &Limits, bytes: usize, rows: usize) -> usize {
    let row = KvLimits { budget: bytes / rows.max(1), ..limits.kv };
    row.tokens_alone(limits.context)
}

/// A slot with tensors of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotUse {
    /// Number of tokens for which its tensors have room.
    pub(super) capacity: usize,
    /// Number of tokens that it has or is about to have.
    pub(super) tokens: usize,
}

impl SlotUse {
    /// Returns the capacity that its tokens need.
    fn needed(&self, limits: &Limits) -> usize {
        limits.kv.capacity_for(self.tokens, limits.context)
    }
}

/// A slot's new capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resize {
    pub(super) slot: usize,
    pub(super) capacity: usize,
}

/// Plans the capacities that give `slot` room for its tokens. If the budget is too small, the capacities of other slots
/// are reduced to what they need.
///
/// # Errors
/// [`StepError::OutOfMemory`] if the budget is still too small.
pub(super) fn make_room(
    limits: &Limits,
    growth: Growth,
    slots: &[SlotUse],
    slot: usize,
) -> Result<Vec<Resize>, StepError> {
    let kv = &limits.kv;
    let needed = slots[slot].needed(limits);

    let mut resizes = Vec::new();
    let mut other_bytes =
        kv.bytes(1, slots.iter().map(|slot| slot.capacity).sum::<usize>() - slots[slot].capacity);
    for (index, other) in slots.iter().enumerate() {
        if other_bytes.saturating_add(kv.bytes(1, needed)) <= kv.budget {
            break;
        }
        let capacity = other.needed(limits);
        if index != slot && other.capacity > capacity {
            other_bytes -= kv.bytes(1, other.capacity - capacity);
            resizes.push(Resize { slot: index, capacity });
        }
    }

    let bytes = other_bytes.saturating_add(kv.bytes(1, needed));
    if bytes > kv.budget {
        let rows = 1 + slots.iter().filter(|slot| slot.capacity > 0).count();
        return Err(StepError::OutOfMemory { rows, capacity: needed, wanted: bytes });
    }

    let limit = max_capacity(limits, kv.budget - other_bytes, 1);
    let SlotUse { capacity, tokens } = slots[slot];
    resizes.push(Resize { slot, capacity: growth.capacity(limits, capacity, tokens, limit) });
    Ok(resizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(budget: usize) -> Limits {
        let kv = KvLimits { bytes_per_token: 1, bytes_per_slot: 0, step: 4, budget };
        Limits { slots: 3, context: 64, chunk: 16, batch: 3, vocab: 8, kv }
    }

    #[test]
    fn capacities_grow_in_proportion_up_to_budget_and_context() {
        let check = |growth: Growth, current, tokens, most, expected| {
            let found = growth.capacity(&limits(1 << 20), current, tokens, most);
            assert_eq!(found, expected, "{growth:?} {current} for {tokens}, at most {most}");
        };
        check(Growth::Double, 0, 1, 64, 4);
        check(Growth::Double, 16, 17, 64, 32);
        check(Growth::Double, 16, 50, 64, 52);
        check(Growth::Double, 16, 17, 24, 24);
        check(Growth::Double, 16, 17, 16, 20);
        check(Growth::Double, 40, 41, 64, 64);
        check(Growth::Eighth, 32, 33, 64, 36);
        check(Growth::Eighth, 48, 49, 64, 56);
        assert_eq!(max_capacity(&limits(40), 40, 3), 12);
        assert_eq!(max_capacity(&limits(40), 1 << 20, 3), 64);
    }

    #[test]
    fn a_slot_of_one_token_after_another_moves_seldom() {
        let limits = limits(1 << 20);
        let (mut capacity, mut moves) = (0, 0);
        for tokens in 1..=64 {
            if tokens > capacity {
                let uses = [SlotUse { capacity, tokens }];
                capacity = make_room(&limits, Growth::Double, &uses, 0).unwrap()[0].capacity;
                moves += 1;
            }
        }
        assert_eq!((capacity, moves), (64, 5));
    }

    #[test]
    fn others_give_up_what_they_have_to_spare() {
        let check = |budget, uses: &[(usize, usize)], slot, expected: &[(usize, usize)]| {
            let uses: Vec<_> = uses.iter().map(|&(capacity, tokens)| SlotUse { capacity, tokens }).collect();
            let found = make_room(&limits(budget), Growth::Double, &uses, slot);
            let found: Option<Vec<_>> =
                found.ok().map(|all| all.iter().map(|resize| (resize.slot, resize.capacity)).collect());
            assert_eq!(found.unwrap_or_default(), expected, "{budget}: {uses:?}");
        };
        // Within the budget, no other slot is reduced.
        check(64, &[(32, 17), (0, 4)], 1, &[(1, 4)]);
        check(64, &[(32, 17), (16, 17)], 1, &[(1, 32)]);
        check(48, &[(32, 17), (16, 17)], 1, &[(0, 20), (1, 28)]);
        check(40, &[(32, 17), (16, 17), (0, 0)], 1, &[(0, 20), (1, 20)]);
        check(36, &[(32, 17), (16, 17)], 1, &[]);
    }
}
