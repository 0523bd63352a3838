//! Invariants of the engine between any two steps, checked on a copy of its state.

use narthex_engine::{
    engine_loop::EngineLoop,
    kv::SlotState,
    snapshot::{RunningSequence, Snapshot},
};

use crate::executor::Watch;

/// Checks every invariant of an engine over a fake executor.
///
/// # Errors
/// The first violated invariant.
pub fn check_engine(core: &EngineLoop, executor: &Watch) -> Result<(), String> {
    let snapshot = core.snapshot();
    check(&snapshot)?;
    check_executor(&snapshot, &executor.lengths())
}

/// Checks every invariant except that of [`check_executor`].
///
/// # Errors
/// The first violated invariant.
pub fn check(snapshot: &Snapshot) -> Result<(), String> {
    check_slots(snapshot)?;
    let numbers: Vec<u64> =
        snapshot.running.iter().map(|s| s.number).chain(snapshot.queue.iter().copied()).collect();
    if !numbers.is_sorted_by(|a, b| a < b) {
        return Err(format!("sequences run and wait in this order: {numbers:?}"));
    }
    let (running, most) = (snapshot.running.len(), snapshot.max_running);
    if running > most {
        return Err(format!("{running} sequences run, {most} may"));
    }
    let (submitted, finished, present) = (snapshot.submitted, snapshot.finished, numbers.len());
    if finished + present as u64 != submitted {
        return Err(format!("{submitted} sequences were submitted, {finished} ended, {present} are here"));
    }
    let (used, budget) = (snapshot.stats.kv_used_bytes, snapshot.stats.kv_budget_bytes);
    if used > budget {
        return Err(format!("the cache takes {used} bytes of {budget}"));
    }
    Ok(())
}

/// Checks that each running sequence has a slot of its own with the same length, and that no other slot is held.
fn check_slots(snapshot: &Snapshot) -> Result<(), String> {
    let mut held = vec![false; snapshot.slots.len()];
    for running in &snapshot.running {
        let &RunningSequence { number, slot, cached, tokens, footprint } = running;
        let state = slot.and_then(|slot| snapshot.slots.get(slot.index()));
        let taken = slot.and_then(|slot| held.get_mut(slot.index()));
        let (Some(state), Some(taken)) = (state, taken.filter(|taken| !**taken)) else {
            return Err(format!("sequence {number} runs in slot {slot:?}, which is not its own"));
        };
        *taken = true;
        let agrees = matches!(state, SlotState::Held { length, .. } if *length == cached);
        if !agrees || cached >= tokens || footprint < tokens {
            return Err(format!(
                "sequence {number} has {cached} of {tokens} tokens in its slot, which is {state:?}"
            ));
        }
    }
    let leaked = |(slot, state): (usize, &SlotState)| matches!(state, SlotState::Held { .. }) && !held[slot];
    match snapshot.slots.iter().enumerate().position(leaked) {
        Some(slot) => Err(format!("slot {slot} is held, but no sequence runs in it")),
        None => Ok(()),
    }
}

/// Compares the engine's lengths with those of the executor, slot by slot. The content of retired slots is unknown.
///
/// # Errors
/// The first slot that differs.
pub fn check_executor(snapshot: &Snapshot, held: &[usize]) -> Result<(), String> {
    for (slot, (state, &found)) in snapshot.slots.iter().zip(held).enumerate() {
        let expected = state.length();
        if expected != found && !matches!(state, SlotState::Retired { .. }) {
            return Err(format!("slot {slot} should hold {expected} tokens, the executor holds {found}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use narthex_engine::{config::EngineStats, position::Position};
    use narthex_spec::SlotId;

    use super::*;

    fn sound() -> Snapshot {
        let running = |number, slot, cached| RunningSequence {
            number,
            slot: Some(SlotId(slot)),
            cached,
            tokens: cached + 1,
            footprint: cached + 2,
        };
        Snapshot {
            slots: vec![
                SlotState::Held { length: 4, reserved: 6 },
                SlotState::Idle {
                    tokens: Position::of_tokens(&[1, 2]),
                    released: 3,
                    inflation: 0,
                    prompt_end: None,
                },
                SlotState::Held { length: 0, reserved: 2 },
            ],
            running: vec![running(2, 0, 4), running(5, 2, 0)],
            queue: vec![6, 9],
            max_running: 2,
            submitted: 10,
            finished: 6,
            stats: EngineStats { kv_used_bytes: 9, kv_budget_bytes: 9, ..EngineStats::default() },
        }
    }

    #[test]
    fn every_rule_is_seen_when_it_breaks() {
        assert_eq!(check(&sound()), Ok(()));
        let broken = |change: fn(&mut Snapshot), expect: &str| {
            let mut snapshot = sound();
            change(&mut snapshot);
            let error = check(&snapshot).expect_err(expect);
            assert!(error.contains(expect), "{error}");
        };
        broken(|s| s.running[1].slot = Some(SlotId(0)), "sequence 5 runs in slot Some(SlotId(0))");
        broken(|s| s.running[1].slot = Some(SlotId(9)), "not its own");
        broken(|s| s.running[0].slot = None, "sequence 2 runs in slot None");
        broken(|s| s.running[0].cached = 3, "sequence 2 has 3 of 5 tokens");
        broken(|s| s.running[0].tokens = 4, "sequence 2 has 4 of 4 tokens");
        broken(|s| s.running.truncate(1), "slot 2 is held");
        broken(|s| s.queue.reverse(), "[2, 5, 9, 6]");
        broken(|s| s.running[1].number = 7, "[2, 7, 6, 9]");
        broken(|s| s.queue[0] = 5, "[2, 5, 5, 9]");
        broken(|s| s.max_running = 1, "2 sequences run, 1 may");
        broken(|s| s.finished = 7, "10 sequences were submitted, 7 ended, 4 are here");
        broken(|s| s.stats.kv_used_bytes = 10, "10 bytes of 9");
    }

    #[test]
    fn the_executor_must_agree_but_for_slots_given_up() {
        let mut snapshot = sound();
        assert_eq!(check_executor(&snapshot, &[4, 2, 0]), Ok(()));
        let broken = "slot 1 should hold 2 tokens, the executor holds 3".to_owned();
        assert_eq!(check_executor(&snapshot, &[4, 3, 0]), Err(broken));
        snapshot.slots[1] = SlotState::Retired { length: 2 };
        assert_eq!(check_executor(&snapshot, &[4, 3, 0]), Ok(()));
    }
}
