//! How fast executors are in both phases, and what a handover costs. Whoever calls brings the clock.

use std::time::Duration;

use narthex_engine::executor::{Executor, StepError};
use narthex_spec::{DeviceName, TokenId};

use super::choice::{Phases, SHORT, TYPICAL};
use crate::load::verify::{SLOT, feed};

/// Measured rounds, after one that is not counted; the median is taken.
const ROUNDS: usize = 3;

/// Tokens that are written in each round.
const STEPS: usize = 8;

/// Tells the time since some moment.
pub(crate) type Clock<'a> = &'a mut dyn FnMut() -> Duration;

/// Times both phases; the executor's first slot is empty before and after.
///
/// # Errors
/// That of a step which fails.
pub(crate) fn phases(
    device: DeviceName,
    executor: &mut dyn Executor,
    clock: Clock<'_>,
) -> Result<Phases, StepError> {
    let limits = executor.limits();
    let (vocab, room) = (limits.vocab, limits.longest().saturating_sub(STEPS + 1).max(1));
    let chunk = limits.chunk.min(room).max(1);
    // Whole chunks, as near to the typical prompt as there is room: a token costs more the more it sees.
    let chunks = (TYPICAL.prompt.min(room) / chunk).max(1);
    let prompt = tokens(chunks * chunk, vocab);
    let (mut whole, mut single, mut short) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let begun = clock();
        feed(executor, 0, &prompt)?;
        let read = clock();
        for step in 0..STEPS {
            feed(executor, prompt.len() + step, &prompt[..1])?;
        }
        let written = clock();
        executor.truncate(SLOT, 0)?;
        let again = clock();
        feed(executor, 0, &prompt[..SHORT.min(chunk)])?;
        let done = clock();
        executor.truncate(SLOT, 0)?;
        if round > 0 {
            whole.push(ms(begun, read) / chunks as f64);
            single.push(ms(read, written) / STEPS as f64);
            short.push(ms(again, done));
        }
    }
    Ok(Phases { device, chunk, chunk_ms: median(whole), short_ms: median(short), token_ms: median(single) })
}

/// Milliseconds per token to hand what one executor has read to another; the first slots of both are empty before and
/// after.
///
/// # Errors
/// That of a step or a handover which fails.
pub(crate) fn handover(
    (from, to): (&mut dyn Executor, &mut dyn Executor),
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

/// Tokens of no meaning, spread over the vocabulary.
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
    use narthex_engine::executor::{KvLimits, Limits};
    use narthex_testkit::executor::{FakeExecutor, Mishap};

    use super::*;

    fn executor(chunk: usize, context: usize) -> FakeExecutor {
        let kv = KvLimits { bytes_per_token: 1, step: 8, budget: 1 << 20 };
        FakeExecutor::new(Limits { slots: 2, context, chunk, batch: 2, vocab: 32, kv })
    }

    /// A clock that goes on by one millisecond whenever it is read, and by ten in the round that is not counted.
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
        // 91 of 100 tokens leave room for eight more and one that needs none.
        check(64, 100, (64, 1.0));
        check(256, 100, (91, 1.0));
    }

    #[test]
    fn a_handover_is_timed_by_the_token() {
        let (mut from, mut to) = (executor(64, 512), executor(256, 101));
        let watches = [from.watch(), to.watch()];
        let found = handover((&mut from, &mut to), &mut clock(2)).unwrap();
        // A hundred tokens in a millisecond.
        assert_eq!(found, 0.01);
        assert_eq!(watches.map(|watch| watch.lengths()), [[0, 0], [0, 0]]);
    }

    #[test]
    fn a_device_that_fails_is_not_timed() {
        let mut executor = executor(64, 512);
        let lost = StepError::Device { message: "lost".to_owned() };
        executor.mishaps = [Mishap::None, Mishap::Error(lost.clone())].into();
        assert_eq!(phases(DeviceName::Cpu, &mut executor, &mut clock(0)), Err(lost));
    }
}
