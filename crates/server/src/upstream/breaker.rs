//! A breaker: after several failures in a row, requests skip an upstream for some seconds, so that they do not wait for a
//! server that is down.

use std::time::{Duration, Instant};

/// Number of failures in a row after which the upstream is skipped.
const FAILURES: u32 = 3;

/// Time for which it is skipped. Afterwards one request tries it, and the others skip it until that one has ended.
const PAUSE: Duration = Duration::from_secs(10);

/// Failures in a row of an upstream.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures: u32,
    /// Time of the next attempt, if the upstream is skipped.
    retry_at: Option<Instant>,
}

impl Breaker {
    /// Lets a request pass, or returns the time until one may pass.
    pub(crate) fn enter(&mut self, now: Instant) -> Result<(), Duration> {
        let Some(retry_at) = self.retry_at else { return Ok(()) };
        if now < retry_at {
            return Err(retry_at - now);
        }
        self.retry_at = Some(now + PAUSE);
        Ok(())
    }

    /// Returns whether requests skip the upstream.
    pub(crate) fn is_open(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Counts an answer.
    pub(crate) fn succeed(&mut self) {
        *self = Self::default();
    }

    /// Counts a failure.
    pub(crate) fn fail(&mut self, now: Instant) {
        self.failures += 1;
        if self.failures >= FAILURES {
            self.retry_at = Some(now + PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_skipped_after_failures_in_a_row() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut breaker = Breaker::default();
        breaker.fail(start);
        breaker.fail(start);
        breaker.succeed();
        breaker.fail(start);
        breaker.fail(start);
        assert_eq!(breaker.enter(start), Ok(()), "the answer between them ends the row");
        breaker.fail(start);
        assert_eq!((breaker.enter(at(4)), breaker.is_open()), (Err(Duration::from_secs(6)), true));
        // One request tries it, and the others wait for its end.
        assert_eq!((breaker.enter(at(10)), breaker.enter(at(10))), (Ok(()), Err(PAUSE)));
        breaker.fail(at(12));
        assert_eq!(breaker.enter(at(21)), Err(Duration::from_secs(1)));
        assert_eq!(breaker.enter(at(22)), Ok(()));
        breaker.succeed();
        assert_eq!((breaker.enter(at(22)), breaker.is_open()), (Ok(()), false));
    }
}
