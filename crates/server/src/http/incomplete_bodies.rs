//! Bodies whose clients have not sent all of them. While a request waits for the memory of bodies, the slowest of them is
//! evicted, so that clients that send nothing more cannot hold all of this memory.

use std::{collections::BTreeMap, future::Future, pin::pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

/// Maximum size of a small body.
pub(crate) const SMALL_BODY_BYTES: usize = 256 << 10;

/// Time that every body may wait for its client.
const GRACE: Duration = Duration::from_millis(500);

/// Speed of a client, in bytes per second, at which its body may wait longer.
const MIN_SPEED: f64 = (256 << 10) as f64;

/// Minimum time between two evictions.
const INTERVAL: Duration = Duration::from_millis(50);

/// Part of the budget for bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodySize {
    Small,
    Large,
}

impl BodySize {
    /// Returns the size of a body with `length` bytes.
    pub(crate) fn of(length: usize) -> Self {
        if length <= SMALL_BODY_BYTES { Self::Small } else { Self::Large }
    }
}

/// The incomplete bodies of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct IncompleteBodies(Arc<Mutex<BodiesByNumber>>);

#[derive(Debug, Default)]
struct BodiesByNumber {
    next: u64,
    last_eviction: Option<Instant>,
    bodies: BTreeMap<u64, Arc<BodyProgress>>,
}

/// An incomplete body. Dropping it removes it from the others.
#[derive(Debug)]
pub(crate) struct IncompleteBody {
    number: u64,
    others: IncompleteBodies,
    progress: Arc<BodyProgress>,
}

#[derive(Debug)]
struct BodyProgress {
    size: BodySize,
    client: Mutex<ClientTime>,
    evicted: Notify,
}

/// Time that a client has taken for a body.
#[derive(Debug, Default)]
struct ClientTime {
    received: usize,
    waited: Duration,
    waits_since: Option<Instant>,
}

impl ClientTime {
    /// Returns the time beyond that of a client with the minimum speed; `None` if the body is not slow or not waiting.
    fn delay(&self, now: Instant) -> Option<Duration> {
        let waited = self.waited + now.saturating_duration_since(self.waits_since?);
        let allowed = GRACE + Duration::from_secs_f64(self.received as f64 / MIN_SPEED);
        waited.checked_sub(allowed).filter(|delay| !delay.is_zero())
    }
}

impl IncompleteBodies {
    /// Adds a body of which nothing was received.
    pub(crate) fn add(&self, size: BodySize) -> IncompleteBody {
        let progress = Arc::new(BodyProgress { size, client: Mutex::default(), evicted: Notify::new() });
        let mut all = self.0.lock();
        let number = all.next;
        all.next += 1;
        all.bodies.insert(number, progress.clone());
        IncompleteBody { number, others: self.clone(), progress }
    }

    /// Waits for the memory of a body. Meanwhile, evicts slow bodies of this size, one after another.
    pub(crate) async fn make_room<T>(&self, size: BodySize, memory: impl Future<Output = T>) -> T {
        let mut memory = pin!(memory);
        loop {
            match timeout(INTERVAL, memory.as_mut()).await {
                Ok(outcome) => return outcome,
                Err(_) => self.evict_slowest(size, Instant::now()),
            }
        }
    }

    /// Evicts the slowest body of this size, unless another one was evicted just before.
    fn evict_slowest(&self, size: BodySize, now: Instant) {
        let mut all = self.0.lock();
        if all.last_eviction.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            return;
        }
        let of_size = all.bodies.iter().filter(|(_, body)| body.size == size);
        let slow = of_size.filter_map(|(number, body)| Some((body.client.lock().delay(now)?, *number)));
        // An evicted body leaves at once, so that the next call evicts another one.
        if let Some(body) = slow.max().and_then(|(_, number)| all.bodies.remove(&number)) {
            body.evicted.notify_one();
            all.last_eviction = Some(now);
        }
    }
}

impl IncompleteBody {
    /// Waits for the next part from the client; `None` if the body was evicted.
    pub(crate) async fn wait_for_client<T>(&self, part: impl Future<Output = T>) -> Option<T> {
        self.progress.client.lock().waits_since = Some(Instant::now());
        let part = tokio::select! {
            part = part => Some(part),
            () = self.progress.evicted.notified() => None,
        };
        let mut client = self.progress.client.lock();
        if let Some(since) = client.waits_since.take() {
            client.waited += since.elapsed();
        }
        part
    }

    /// Counts the bytes of a part.
    pub(crate) fn received(&self, bytes: usize) {
        self.progress.client.lock().received += bytes;
    }
}

impl Drop for IncompleteBody {
    fn drop(&mut self) {
        self.others.0.lock().bodies.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    /// Adds a body whose client has sent some bytes and then nothing for this time.
    fn waiting(bodies: &IncompleteBodies, size: BodySize, received: usize, time: Duration) -> IncompleteBody {
        let body = bodies.add(size);
        body.received(received);
        body.progress.client.lock().waits_since = Some(Instant::now() - time);
        body
    }

    fn remaining(bodies: &IncompleteBodies) -> Vec<u64> {
        bodies.0.lock().bodies.keys().copied().collect()
    }

    #[test]
    fn the_slowest_body_of_a_size_is_evicted_first() {
        let bodies = IncompleteBodies::default();
        let second = Duration::from_secs(1);
        let all = [
            waiting(&bodies, BodySize::Small, 0, 2 * second),
            waiting(&bodies, BodySize::Small, 0, 3 * second),
            waiting(&bodies, BodySize::Large, 0, 4 * second),
            // This body is larger, so it may take longer.
            waiting(&bodies, BodySize::Small, 2 << 20, 5 * second),
            bodies.add(BodySize::Small),
        ];
        let now = Instant::now();
        for (after, expect) in
            [(0, vec![0, 2, 3, 4]), (1, vec![0, 2, 3, 4]), (50, vec![2, 3, 4]), (100, vec![2, 3, 4])]
        {
            bodies.evict_slowest(BodySize::Small, now + Duration::from_millis(after));
            assert_eq!(remaining(&bodies), expect);
        }
        drop(all);
        assert!(remaining(&bodies).is_empty());
    }

    #[tokio::test]
    async fn a_body_is_evicted_while_another_waits_for_memory() {
        let bodies = IncompleteBodies::default();
        let body = waiting(&bodies, BodySize::Small, 0, Duration::from_secs(1));
        tokio::select! {
            part = body.wait_for_client(pending::<()>()) => assert_eq!(part, None),
            () = bodies.make_room(BodySize::Small, pending()) => {}
        }
    }

    #[tokio::test]
    async fn only_the_time_of_the_client_counts() {
        let bodies = IncompleteBodies::default();
        let body = bodies.add(BodySize::Small);
        assert_eq!(body.wait_for_client(ready(1)).await, Some(1));
        let hour = Duration::from_secs(3600);
        assert_eq!(body.progress.client.lock().delay(Instant::now() + hour), None);
    }
}
