//! An executor that cannot take the engine down: panics become errors, and logits are what the plan asked for.
//!
//! Knows the port, never sequences.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

use narthex_spec::SlotId;

use crate::executor::{Executor, KvBlock, Limits, Logits, StepError, StepPlan};

/// The executor, and whether it may still be called.
pub(crate) struct Guarded {
    executor: Box<dyn Executor>,
    limits: Limits,
    broken: bool,
}

impl Guarded {
    pub(crate) fn new(executor: Box<dyn Executor>) -> Self {
        Self { limits: executor.limits().clone(), executor, broken: false }
    }

    /// The reason, where the executor panicked: its state is unknown, so it is not called again.
    pub(crate) fn fault(&self) -> Option<StepError> {
        self.broken.then(panicked)
    }

    /// Calls the executor, unless it has panicked before.
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut dyn Executor) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        if self.broken {
            return Err(panicked());
        }
        let executor = &mut self.executor;
        catch_unwind(AssertUnwindSafe(move || call(executor.as_mut()))).unwrap_or_else(|_| {
            self.broken = true;
            Err(panicked())
        })
    }
}

impl Executor for Guarded {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn step(&mut self, plan: &StepPlan) -> Result<Logits<'_>, StepError> {
        if self.broken {
            return Err(panicked());
        }
        let executor = &mut self.executor;
        let step = AssertUnwindSafe(move || {
            // Moving the reference out of the closure lets the logits outlive the call.
            let executor = executor;
            executor.step(plan)
        });
        let logits = match catch_unwind(step) {
            Ok(outcome) => outcome?,
            Err(_) => {
                self.broken = true;
                return Err(panicked());
            }
        };
        let (found, expected) = (logits.rows(), plan.logits_rows());
        if found != expected || logits.vocab() != self.limits.vocab {
            let message = format!(
                "expected {expected} rows of {} logits, found {found} of {}; please report this",
                self.limits.vocab,
                logits.vocab()
            );
            return Err(StepError::Device { message });
        }
        Ok(logits)
    }

    fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        self.call(|executor| executor.truncate(slot, len))
    }

    fn read_kv(&self, slot: SlotId, range: Range<usize>) -> Result<KvBlock, StepError> {
        if self.broken {
            return Err(panicked());
        }
        let tokens = range.len();
        // Reading changes nothing, so that a panic in it says nothing about the steps to come.
        let read = catch_unwind(AssertUnwindSafe(|| self.executor.read_kv(slot, range)));
        let block = read.unwrap_or_else(|_| Err(panicked()))?;
        if block.tokens() != tokens {
            let found = block.tokens();
            let message = format!("expected keys of {tokens} tokens, found {found}; please report this");
            return Err(StepError::Device { message });
        }
        Ok(block)
    }

    fn write_kv(&mut self, slot: SlotId, at: usize, block: &KvBlock) -> Result<(), StepError> {
        self.call(|executor| executor.write_kv(slot, at, block))
    }
}

fn panicked() -> StepError {
    StepError::Device {
        message: "its code panicked; load the model again, and please report this".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{KvLimits, Wanted};

    /// Gives these logits for every plan; panics once where there are none.
    struct Fixed {
        limits: Limits,
        logits: Vec<f32>,
        width: usize,
    }

    impl Executor for Fixed {
        fn limits(&self) -> &Limits {
            &self.limits
        }

        fn step(&mut self, _: &StepPlan) -> Result<Logits<'_>, StepError> {
            if self.logits.is_empty() {
                self.logits.resize(self.width, 0.0);
                panic!("an executor that panics, as this test wants");
            }
            Ok(Logits::new(&self.logits, self.width))
        }

        fn truncate(&mut self, _: SlotId, _: usize) -> Result<(), StepError> {
            Ok(())
        }

        fn read_kv(&self, _: SlotId, _: Range<usize>) -> Result<KvBlock, StepError> {
            KvBlock::new(1, Vec::new())
        }

        fn write_kv(&mut self, _: SlotId, _: usize, _: &KvBlock) -> Result<(), StepError> {
            panic!("an executor that panics, as this test wants")
        }
    }

    /// The second of two steps that each want one row of four logits, and what became of a truncation afterwards.
    fn check(count: usize, width: usize, expect: &str) {
        let kv = KvLimits { bytes_per_token: 1, step: 1, budget: 9 };
        let limits = Limits { slots: 1, context: 9, chunk: 9, batch: 1, vocab: 4, kv };
        let mut guarded = Guarded::new(Box::new(Fixed { limits, logits: vec![0.0; count], width }));
        let mut plan = StepPlan::default();
        plan.push(SlotId(0), 0, &[1, 2], Wanted::Last);
        let first = guarded.step(&plan).map(|logits| logits.rows());
        let second = guarded.step(&plan).map(|logits| logits.rows());
        assert_eq!(first, second);
        let found = format!(
            "{second:?} {:?} {:?}",
            guarded.truncate(SlotId(0), 0).is_ok(),
            guarded.fault().is_some()
        );
        assert!(found.contains(expect), "{found}");
    }

    #[test]
    fn logits_are_what_the_plan_wants_or_an_error() {
        check(4, 4, "Ok(1) true false");
        check(8, 4, "expected 1 rows of 4 logits, found 2 of 4");
        check(3, 3, "expected 1 rows of 4 logits, found 1 of 3");
    }

    #[test]
    fn an_executor_that_panicked_is_not_called_again() {
        check(0, 4, "its code panicked");
        check(0, 4, "false true");
    }

    #[test]
    fn blocks_are_as_long_as_asked_and_a_panic_while_writing_is_an_error() {
        let kv = KvLimits { bytes_per_token: 1, step: 1, budget: 9 };
        let limits = Limits { slots: 1, context: 9, chunk: 9, batch: 1, vocab: 4, kv };
        let mut guarded = Guarded::new(Box::new(Fixed { limits, logits: vec![0.0; 4], width: 4 }));
        let block = guarded.read_kv(SlotId(0), 3..4).unwrap();
        let error = guarded.read_kv(SlotId(0), 3..5).unwrap_err().to_string();
        assert!(error.contains("expected keys of 2 tokens, found 1"), "{error}");
        assert!(guarded.fault().is_none());
        assert_eq!(guarded.write_kv(SlotId(0), 0, &block), Err(panicked()));
        assert_eq!(guarded.read_kv(SlotId(0), 3..4), Err(panicked()));
    }
}
