//! An executor that cannot take the engine down: panics become errors, and logits are what the plan asked for.
//!
//! Knows the port, never sequences.

use std::panic::{AssertUnwindSafe, catch_unwind};

use narthex_spec::SlotId;

use crate::executor::{Executor, Limits, Logits, StepError, StepPlan};

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

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The reason, where the executor panicked: its state is unknown, so it is not called again.
    pub(crate) fn fault(&self) -> Option<StepError> {
        self.broken.then(panicked)
    }

    /// As [`Executor::step`].
    pub(crate) fn step(&mut self, plan: &StepPlan) -> Result<Logits<'_>, StepError> {
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

    /// As [`Executor::truncate`].
    pub(crate) fn truncate(&mut self, slot: SlotId, len: usize) -> Result<(), StepError> {
        if self.broken {
            return Err(panicked());
        }
        let executor = &mut self.executor;
        catch_unwind(AssertUnwindSafe(move || executor.truncate(slot, len))).unwrap_or_else(|_| {
            self.broken = true;
            Err(panicked())
        })
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
}
