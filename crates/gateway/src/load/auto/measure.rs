//! Measurement of executors in both phases and of handovers. The caller provides the clock.

use std::time::Duration;

use narthex_engine::executor::{Executor, StepError};
use narthex_spec::{DeviceName, TokenId};

use super::estimate::{PhaseTimes, SHORT, TYPICAL};
use crate::load::verify::{SLOT, feed};

/// Number of measured rounds after a warm-up. The result is their median.
const ROUNDS: usize = 3;

/// Tokens generated in each round.
const STEPS: usize = 8;

/// Clock that returns the time since some fixed moment.
pub(crate) type Clock<'a> = &'a mut dyn FnMut() -> Duration;

/// Measures both phases. The executor's first slot is empty before and after.
///
/// # Errors
/// The error of a failed step.
pub(crate) fn phases(
    device: DeviceName,
    executor: &mut dyn Executor,
    clock: Clock<'_>,
) -> Result<PhaseTimes, StepError> {
    let limits = executor.limits();
    let vocab = limits.vocab;
    let room = limits.longest().saturating_sub(STEPS + 1).max(1);
    let chunk = limits.chunk.min(room).max(1);
    // Whole chunks, as close to the typical prompt as there is room for, since a token's cost grows with the context.
    let chunks = (TYPICAL.prompt.min(room) / chunk).max(1);
    let prompt = tokens(chunks * chunk, vocab);

    let mut chunk_times = Vec::new();
    let mut token_times = Vec::new();
    let mut short_times = Vec::new();
    for round in 0..=ROUNDS {
        let begun = clock();
        feed(executor, 0, &prompt)?;
        let prefilled = clock();
        for step in 0..STEPS {
            feed(executor, prompt.len() + step, &prompt[..1])?;
        }
        let decoded = clock();
        executor.truncate(SLOT, 0)?;
        let short_begun = clock();
        feed(executor, 0, &prompt[..SHORT.min(chunk)])?;
        let short_done = clock();
        executor.truncate(SLOT, 0)?;
        if round > 0 {
            chunk_times.push(ms(begun, prefilled) / chunks as f64);
            token_times.push(ms(prefilled, decoded) / STEPS as f64);
            short_times.push(ms(short_begun, short_done));
        }
    }

    let chunk_ms = median(chunk_times);
    let short_ms = median(short_times);
    let token_ms = median(token_times);
    Ok(PhaseTimes { device, chunk, chunk_ms, short_ms, token_ms })
}

/// Measures the milliseconds per token of a handover. The first slots of both executors are empty before and after.
///
/// # Errors
/// The error of a failed step or handover.
pub(crate) fn handover(
    from: &mut dyn Executor,
    to: &mut dyn Executor,
    clock: Clock<'_>,
) -> Result<f64, StepError> {
    let room = from.limits().longest().min(to.limits().longest()).saturating_sub(1);
    let prompt = tokens(TYPICAL.prompt.min(room).max(1), from.limits().vocab);
    feed(from, 0, &prompt)?;
    let mut times = Vec::new();
    for round in 0..=ROUNDS {
        let begun = clock();
        let block = from.read_kv(SLOT, 0..prompt.len())?;
        to.write_kv(SLOT, 0, &block)?;
        let done = clock();
        to.truncate(SLOT, 0)?;
        if round > 0 {
            times.push(ms(begun, done) / prompt.len() as f64);
        }
    }
    from.truncate(SLOT, 0)?;
    Ok(median(times))
}

/// Returns arbitrary tokens, spread over the vocabulary.
fn tokens(count: usize, vocab: usize) -> Vec<TokenId> {
    (0..count).map(|index| (index * 7919 % vocab.max(1)) as TokenId).collect()
}

fn ms(from: Duration, to: Duration) -> f64 {
    to.saturating_sub(from).as_secs_f64() * 1e3
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use narthex_engine::executor::Limits;
    use narthex_testkit::executor::{FakeExecutor, Fault, KV};

    use super::*;

    fn executor(chunk: usize, context: usize) -> FakeExecutor {
        FakeExecutor::new(Limits { slots: 2, context, chunk, batch: 2, vocab: 32, kv: KV })
    }

    /// Clock that advances by one millisecond per reading, and by ten in the warm-up round.
    fn clock(slow: usize) -> impl FnMut() -> Duration {
        let (mut reads, mut time) = (0, Duration::ZERO);
        move || {
            time += Duration::from_millis(if reads < slow { 10 } else { 1 });
            reads += 1;
            time
        }
    }

    #[test]
    fn chunks_and_tokens_are_timed_apart() {
        let check = |chunk, context, expected: (usize, f64)| {
            let mut executor = executor(chunk, context);
            let watch = executor.watch();
            let found = phases(DeviceName::Cpu, &mut executor, &mut clock(5)).unwrap();
            assert_eq!((found.chunk, found.chunk_ms), expected, "{found:?}");
            assert_eq!((found.token_ms, found.short_ms), (1.0 / STEPS as f64, 1.0));
            assert_eq!(watch.lengths(), [0, 0]);
        };
        // Four chunks of 64 tokens in one millisecond.
        check(64, 512, (64, 0.25));
        check(256, 512, (256, 1.0));
        // A context of 100 tokens has room for a prompt of 91, because eight steps and one more token are subtracted.
        check(64, 100, (64, 1.0));
        check(256, 100, (91, 1.0));
    }

    #[test]
    fn a_handover_is_timed_by_the_token() {
        let (mut from, mut to) = (executor(64, 512), executor(256, 101));
        let watches = [from.watch(), to.watch()];
        let found = handover(&mut from, &mut to, &mut clock(2)).unwrap();
        // A handover of 100 tokens takes one millisecond.
        assert_eq!(found, 0.01);
        assert_eq!(watches.map(|watch| watch.lengths()), [[0, 0], [0, 0]]);
    }

    #[test]
    fn a_device_that_fails_is_not_timed() {
        let mut executor = executor(64, 512);
        let lost = StepError::Device { message: "lost".to_owned() };
        executor.faults = [Fault::None, Fault::Error(lost.clone())].into();
        assert_eq!(phases(DeviceName::Cpu, &mut executor, &mut clock(0)), Err(lost));
    }
}
