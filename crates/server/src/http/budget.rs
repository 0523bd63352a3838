//! Limits on the memory of all requests together.
//!
//! A body reserves twice its length before it is read: for its bytes, and for the texts of the request that is parsed
//! from them. It reserves the memory of its values before it is parsed, and a request that tokenizes a whole text or
//! copies a stored conversation reserves memory for this work. A large answer reserves its memory before it is
//! computed, and every answer holds memory until its client has taken it. The parts of a generated answer hold memory
//! from the engine on. All have budgets of their own, so that a request that holds a share of one and waits for the
//! next never waits for itself. Each budget has a separate part for small shares, so that these never wait for large
//! ones; no request waits for the budget of generated parts.

use std::{mem, sync::Arc, time::Duration};

use axum::http::StatusCode;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    freed_memory::FreedMemory,
    incomplete_bodies::{BodySize, IncompleteBodies, IncompleteBody, SMALL_BODY_BYTES},
};
use crate::{error::ApiError, waits::wait_for};

/// Maximum size of a body.
pub(crate) const MAX_BODY_BYTES: usize = 32 << 20;

/// Bytes for the small shares of a budget, and for all others.
const BUDGET_BYTES: [usize; 2] = [32 << 20, 128 << 20];

/// Maximum bytes of a small share for parsed values.
const SMALL_VALUES_BYTES: usize = 1 << 20;

/// Maximum bytes of a small share for work.
const SMALL_WORK_BYTES: usize = 4 << 20;

/// Maximum bytes of a small share for an answer.
const SMALL_ANSWER_BYTES: usize = 512 << 10;

/// Minimum memory of a request after which freed memory is returned to the system.
const LARGE_REQUEST_BYTES: usize = 1 << 20;

/// Memory of a streamed answer whose handler reserves none: its connection's buffers and its last events.
const STREAM_BYTES: usize = 16 << 10;

/// Memory of an answer for each of its bytes: the buffer of a JSON writer doubles when it is full.
const BYTES_PER_WRITTEN: usize = 2;

/// Maximum memory of an answer that the share of its parts covers, as a multiple of theirs. JSON adds names and
/// escapes.
const MAX_ANSWER_TO_PARTS: usize = 2 * BYTES_PER_WRITTEN;

/// Bytes of one permit.
const UNIT: usize = 1 << 10;

/// The budgets of a server.
#[derive(Debug, Clone)]
pub(crate) struct BodyBudget {
    bodies: Pool,
    /// Bodies that hold shares and were not received completely.
    incomplete: IncompleteBodies,
    values: Pool,
    work: Pool,
    answers: Pool,
    /// Memory of generated parts. A waiting request would take all of it.
    parts: Arc<Semaphore>,
    /// Memory that ended requests have freed.
    freed: FreedMemory,
    /// Maximum time that a request waits for a share.
    wait: Duration,
}

/// One budget.
#[derive(Debug, Clone)]
struct Pool {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Maximum bytes of a small share.
    small_bytes: usize,
    /// Name of the budget.
    name: &'static str,
    /// Message of the error if there is no room.
    full: &'static str,
}

/// Memory of an answer, reserved until the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct AnswerMemory {
    budget: BodyBudget,
    share: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    parts: Arc<Mutex<GeneratedMemory>>,
}

/// Parts of an answer that were generated, and wait for its client or for the rest of the answer.
#[derive(Debug, Default)]
struct GeneratedMemory {
    bytes: usize,
    share: Option<OwnedSemaphorePermit>,
}

impl GeneratedMemory {
    /// Returns the permits that this number of bytes needs. A few bytes need none.
    fn needed(bytes: usize) -> usize {
        bytes.saturating_sub(STREAM_BYTES).div_ceil(UNIT)
    }

    fn reserved(&self) -> usize {
        permits(&self.share)
    }
}

/// Memory of the compressed bytes of a body. Dropping it releases the memory.
#[derive(Debug)]
pub(crate) struct CompressedBytes {
    _share: OwnedSemaphorePermit,
}

/// Shares of the budgets that a request has reserved. Clones share them; dropping the last one releases them.
#[derive(Debug, Clone)]
pub(crate) struct Reservation(Arc<Mutex<Shares>>);

#[derive(Debug)]
struct Shares {
    body: OwnedSemaphorePermit,
    others: Vec<OwnedSemaphorePermit>,
    freed: FreedMemory,
}

impl Drop for Shares {
    fn drop(&mut self) {
        let permits = self.others.iter().map(OwnedSemaphorePermit::num_permits).sum::<usize>();
        if (self.body.num_permits() + permits) * UNIT >= LARGE_REQUEST_BYTES {
            self.freed.schedule_release();
        }
    }
}

/// Error of a body without room.
const BODY_BUDGET_FULL: &str = "all memory for request bodies is in use; try again in a moment";

/// Error of a request without room for its work.
const WORK_BUDGET_FULL: &str = "all memory for the work of requests is in use; try again in a moment";

/// Error of an answer without room.
const ANSWER_BUDGET_FULL: &str =
    "all memory for answers is in use by answers that other clients have not read; try again in a moment";

/// Error of an answer that takes more memory than the budget has.
const TOO_LARGE_ANSWER: &str = "the answer takes more memory than the limit for all answers; ask for fewer choices, tokens or \
     alternatives of tokens";

impl Pool {
    fn new(small_bytes: usize, name: &'static str, full: &'static str) -> Self {
        let [small, large] = BUDGET_BYTES.map(|bytes| Arc::new(Semaphore::new(bytes / UNIT)));
        Self { small, large, small_bytes, name, full }
    }

    /// Returns the semaphore for shares of this size.
    fn semaphore_for(&self, bytes: usize) -> &Arc<Semaphore> {
        if bytes <= self.small_bytes { &self.small } else { &self.large }
    }
}

impl BodyBudget {
    /// Creates the budgets of a server whose requests wait for a share up to this time.
    pub(crate) fn new(wait: Duration) -> Self {
        Self {
            bodies: Pool::new(2 * SMALL_BODY_BYTES, "memory for bodies", BODY_BUDGET_FULL),
            incomplete: IncompleteBodies::default(),
            values: Pool::new(SMALL_VALUES_BYTES, "memory for the values of bodies", BODY_BUDGET_FULL),
            work: Pool::new(SMALL_WORK_BYTES, "memory for work", WORK_BUDGET_FULL),
            answers: Pool::new(SMALL_ANSWER_BYTES, "memory for answers", ANSWER_BUDGET_FULL),
            parts: Arc::new(Semaphore::new(BUDGET_BYTES[1] / UNIT)),
            freed: FreedMemory::default(),
            wait,
        }
    }

    /// Waits for the share of a body with `length` bytes. Slow bodies are evicted meanwhile.
    pub(crate) async fn reserve(&self, length: usize) -> Result<Reservation, ApiError> {
        let share = self.share(&self.bodies, 2 * length.min(MAX_BODY_BYTES));
        let body = self.incomplete.make_room(BodySize::of(length), share).await?;
        Ok(Reservation(Arc::new(Mutex::new(Shares { body, others: Vec::new(), freed: self.freed.clone() }))))
    }

    /// Adds a body that has its share and will be received now.
    pub(crate) fn add_incomplete(&self, length: usize) -> IncompleteBody {
        self.incomplete.add(BodySize::of(length))
    }

    /// Waits for the share of values that take this memory, which the reservation keeps.
    ///
    /// # Errors
    /// 413 for values that take more memory than all requests may, and 429 if others take it.
    pub(crate) async fn reserve_values(&self, held: &Reservation, bytes: usize) -> Result<(), ApiError> {
        let most = BUDGET_BYTES[1];
        if bytes > most {
            let message = format!(
                "the values of the body take up to {bytes} bytes of memory, but at most {most} are allowed; send a \
                 request with fewer values"
            );
            return Err(ApiError::plain(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        let share = self.share(&self.values, bytes).await?;
        held.0.lock().others.push(share);
        Ok(())
    }

    /// Reserves the share of values as [`Self::reserve_values`] does, if there is room. Returns true if there was.
    pub(crate) fn try_reserve_values(&self, held: &Reservation, bytes: usize) -> bool {
        let share = self.values.semaphore_for(bytes).clone().try_acquire_many_owned(units(bytes));
        share.map(|share| held.0.lock().others.push(share)).is_ok()
    }

    /// Waits for the share of work that takes this memory, which the reservation keeps. Work that exceeds the budget
    /// waits for the whole budget.
    pub(crate) async fn reserve_work(&self, held: &Reservation, bytes: usize) -> Result<(), ApiError> {
        let share = self.share(&self.work, bytes.min(BUDGET_BYTES[1])).await?;
        held.0.lock().others.push(share);
        Ok(())
    }

    /// Waits for the share of compressed bytes, from their first one until they were decompressed. It belongs to the
    /// work of its request, which holds no other share of this budget meanwhile.
    pub(crate) async fn reserve_compressed(&self, bytes: usize) -> Result<CompressedBytes, ApiError> {
        Ok(CompressedBytes { _share: self.share(&self.work, bytes.min(BUDGET_BYTES[1])).await? })
    }

    async fn share(&self, pool: &Pool, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let share = pool.semaphore_for(bytes).clone().acquire_many_owned(units(bytes));
        match wait_for(pool.name, timeout(self.wait, share)).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(ApiError::overloaded(pool.full, self.wait)),
        }
    }
}

impl AnswerMemory {
    /// Creates the memory of an answer, which has no share yet.
    pub(crate) fn new(budget: &BodyBudget) -> Self {
        Self { budget: budget.clone(), share: Arc::default(), parts: Arc::default() }
    }

    /// Waits for the share of an answer that will take up to this memory. One that exceeds the budget waits for the
    /// whole budget. Called before the answer is computed. A share that is large enough remains.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<(), ApiError> {
        let bytes = bytes.min(BUDGET_BYTES[1]);
        if units(bytes) as usize <= self.reserved() {
            return Ok(());
        }
        let share = self.budget.share(&self.budget.answers, bytes).await?;
        *self.share.lock() = Some(share);
        Ok(())
    }

    fn reserved(&self) -> usize {
        permits(&self.share.lock())
    }

    /// Adds the memory of a generated part. Never waits.
    ///
    /// # Errors
    /// The message of the error if there is no room for the part.
    pub(crate) fn add_generated(&self, bytes: usize) -> Result<(), &'static str> {
        let mut parts = self.parts.lock();
        let total = parts.bytes.saturating_add(bytes);
        if total > BUDGET_BYTES[1] {
            return Err(TOO_LARGE_ANSWER);
        }
        let more = GeneratedMemory::needed(total).saturating_sub(parts.reserved());
        if more > 0 {
            let found = self.budget.parts.clone().try_acquire_many_owned(more as u32);
            let found = found.map_err(|_| ANSWER_BUDGET_FULL)?;
            match &mut parts.share {
                Some(share) => share.merge(found),
                None => parts.share = Some(found),
            }
        }
        parts.bytes = total;
        Ok(())
    }

    /// Removes the memory of a part, or of some of it.
    pub(crate) fn remove_generated(&self, bytes: usize) {
        let mut parts = self.parts.lock();
        parts.bytes = parts.bytes.saturating_sub(bytes);
        let unneeded = parts.reserved().saturating_sub(GeneratedMemory::needed(parts.bytes));
        if let Some(share) = parts.share.as_mut().filter(|_| unneeded > 0) {
            drop(share.split(unneeded));
        }
    }

    /// Fits the share to an answer that exists. `length` is its number of bytes; `None` for a stream, which keeps a
    /// share that was reserved.
    ///
    /// # Errors
    /// 429 if the share was too small and there is no room for more. The answer would hold memory while it waits.
    pub(crate) fn resize_to(&self, length: Option<usize>) -> Result<(), ApiError> {
        // A whole answer has replaced its parts.
        let parts = length.map(|_| mem::take(&mut *self.parts.lock()));
        let mut share = self.share.lock();
        let reserved = permits(&share);
        let bytes = length.map_or(STREAM_BYTES, |length| length.saturating_mul(BYTES_PER_WRITTEN));
        let needed = units(bytes.min(BUDGET_BYTES[1])) as usize;
        if let Some(share) = share.as_mut().filter(|_| needed <= reserved) {
            let unneeded = if length.is_some() { reserved - needed } else { 0 };
            drop(share.split(unneeded));
            return Ok(());
        }
        // Released first, because it may come from the other semaphore.
        drop(share.take());
        let Self { budget: BodyBudget { answers, wait, .. }, .. } = self;
        let found = answers.semaphore_for(needed * UNIT).clone().try_acquire_many_owned(needed as u32);
        // The memory of the parts covers the answer, which has their texts.
        let of_parts = parts.filter(|parts| MAX_ANSWER_TO_PARTS * parts.bytes >= needed * UNIT);
        let of_parts = of_parts.and_then(|parts| parts.share);
        *share = Some(found.ok().or(of_parts).ok_or_else(|| ApiError::overloaded(answers.full, *wait))?);
        Ok(())
    }
}

impl Reservation {
    /// Releases the part of the share that a body with `length` bytes does not need.
    pub(crate) fn shrink(&self, length: usize) {
        let body = &mut self.0.lock().body;
        let unneeded = body.num_permits().saturating_sub(units(2 * length) as usize);
        drop(body.split(unneeded));
    }
}

fn permits(share: &Option<OwnedSemaphorePermit>) -> usize {
    share.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
}

/// Returns the permits for bytes within a budget.
fn units(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn impatient() -> BodyBudget {
        BodyBudget::new(Duration::ZERO)
    }

    #[tokio::test]
    async fn large_bodies_wait_for_each_other_and_small_ones_do_not() {
        let budget = impatient();
        let first = budget.reserve(MAX_BODY_BYTES).await.unwrap();
        let second = budget.reserve(MAX_BODY_BYTES).await.unwrap();
        let refused = budget.reserve(SMALL_BODY_BYTES + 1).await.unwrap_err();
        assert_eq!(refused.body()["error"]["type"], "rate_limit_error");
        for _ in 0..100 {
            budget.reserve(SMALL_BODY_BYTES).await.unwrap();
        }
        let shared = first.clone();
        drop(first);
        budget.reserve(MAX_BODY_BYTES).await.unwrap_err();
        second.shrink(1);
        let third = budget.reserve(MAX_BODY_BYTES - UNIT).await.unwrap();
        drop((shared, second, third));
        assert_eq!(budget.bodies.large.available_permits() * UNIT, BUDGET_BYTES[1]);
    }

    #[tokio::test]
    async fn values_count_and_not_bytes_alone() {
        // Bodies of 385 KB with 65,536 values.
        let (budget, values) = (impatient(), 65_536 * 640);
        let mut held = Vec::new();
        let refused = loop {
            let body = budget.reserve(385_000).await.unwrap();
            match budget.reserve_values(&body, values).await {
                Ok(()) => held.push(body),
                Err(error) => {
                    assert!(!budget.try_reserve_values(&body, values));
                    break error;
                }
            }
        };
        assert_eq!((held.len(), refused.status()), (BUDGET_BYTES[1] / values, StatusCode::TOO_MANY_REQUESTS));
        let small = budget.reserve(1000).await.unwrap();
        assert!(budget.try_reserve_values(&small, SMALL_VALUES_BYTES));
        budget.reserve_values(&small, SMALL_VALUES_BYTES).await.unwrap();
        let error = budget.reserve_values(&small, BUDGET_BYTES[1] + 1).await.unwrap_err();
        assert_eq!(error.status(), StatusCode::PAYLOAD_TOO_LARGE);
        drop((held, small));
        let free = [&budget.values.small, &budget.values.large].map(|part| part.available_permits() * UNIT);
        assert_eq!(free, BUDGET_BYTES);
    }

    #[tokio::test]
    async fn large_work_waits_for_each_other() {
        let budget = impatient();
        let body = budget.reserve(1 << 20).await.unwrap();
        budget.reserve_work(&body, 100 << 20).await.unwrap();
        let other = budget.reserve(1 << 20).await.unwrap();
        assert_eq!(
            budget.reserve_work(&other, 100 << 20).await.unwrap_err().status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        budget.reserve_work(&other, 1000).await.unwrap();
        drop(body);
        budget.reserve_work(&other, usize::MAX).await.unwrap();
    }

    /// Returns the free bytes for answers: of the small part, and of the large one.
    fn free_for_answers(budget: &BodyBudget) -> [usize; 2] {
        [&budget.answers.small, &budget.answers.large].map(|part| part.available_permits() * UNIT)
    }

    #[tokio::test]
    async fn answers_hold_memory_until_they_are_dropped() {
        let budget = impatient();
        let answer = || AnswerMemory::new(&budget);
        let (first, second) = (answer(), answer());
        first.reserve(100 << 20).await.unwrap();
        assert_eq!(second.reserve(100 << 20).await.unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        // The answer is shorter than expected.
        first.resize_to(Some(10 << 20)).unwrap();
        assert_eq!(free_for_answers(&budget), [BUDGET_BYTES[0], BUDGET_BYTES[1] - (20 << 20)]);
        second.reserve(100 << 20).await.unwrap();
        // An answer without a share gets one at once or is refused; small ones do not wait for large ones.
        let refused = answer().resize_to(Some(10 << 20)).unwrap_err();
        assert!(refused.message().contains("memory for answers"), "{}", refused.message());
        answer().resize_to(Some(1000)).unwrap();
        drop((first, second));
        assert_eq!(free_for_answers(&budget), BUDGET_BYTES);
        // One beyond the budget takes all of it.
        let all = answer();
        all.reserve(usize::MAX).await.unwrap();
        all.resize_to(Some(BUDGET_BYTES[1])).unwrap();
        assert_eq!(free_for_answers(&budget), [BUDGET_BYTES[0], 0]);
    }

    #[tokio::test]
    async fn generated_parts_hold_memory_until_they_are_taken() {
        let budget = impatient();
        let free = || budget.parts.available_permits() * UNIT;
        let (first, second) = (AnswerMemory::new(&budget), AnswerMemory::new(&budget));
        // Short answers need no share.
        first.add_generated(STREAM_BYTES / 2).unwrap();
        first.add_generated(STREAM_BYTES / 2).unwrap();
        assert_eq!(free(), BUDGET_BYTES[1]);
        first.add_generated(100 << 20).unwrap();
        assert_eq!(second.add_generated(100 << 20), Err(ANSWER_BUDGET_FULL));
        second.add_generated(10 << 20).unwrap();
        assert_eq!(free(), BUDGET_BYTES[1] - (110 << 20) + STREAM_BYTES);
        first.remove_generated(100 << 20);
        second.add_generated(100 << 20).unwrap();
        // The whole answer replaces its parts.
        second.resize_to(Some(1000)).unwrap();
        assert_eq!(free(), BUDGET_BYTES[1]);
        assert_eq!(first.add_generated(BUDGET_BYTES[1]), Err(TOO_LARGE_ANSWER));
        assert_eq!(first.add_generated(usize::MAX), Err(TOO_LARGE_ANSWER));
        drop((first, second));
        assert_eq!((free(), free_for_answers(&budget)), (BUDGET_BYTES[1], BUDGET_BYTES));
    }

    #[tokio::test]
    async fn a_generated_answer_is_not_lost_to_a_waiting_request() {
        let budget = BodyBudget::new(Duration::from_secs(60));
        let held = AnswerMemory::new(&budget);
        held.reserve(BUDGET_BYTES[1] - UNIT).await.unwrap();
        let waiting = AnswerMemory::new(&budget);
        let waits = tokio::spawn(async move { waiting.reserve(BUDGET_BYTES[1]).await });
        tokio::task::yield_now().await;
        let generated = AnswerMemory::new(&budget);
        generated.add_generated(4 << 20).unwrap();
        generated.resize_to(Some(4 << 20)).unwrap();
        assert_eq!(budget.parts.available_permits() * UNIT, BUDGET_BYTES[1] - (4 << 20) + STREAM_BYTES);
        waits.abort();
    }

    #[tokio::test]
    async fn streams_count_and_keep_their_share() {
        let budget = impatient();
        let reserved = AnswerMemory::new(&budget);
        reserved.reserve(1 << 20).await.unwrap();
        reserved.reserve(0).await.unwrap();
        reserved.resize_to(None).unwrap();
        assert_eq!(free_for_answers(&budget), [BUDGET_BYTES[0], BUDGET_BYTES[1] - (1 << 20)]);
        let mut streams = Vec::new();
        let refused = loop {
            let stream = AnswerMemory::new(&budget);
            match stream.resize_to(None) {
                Ok(()) => streams.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!((streams.len(), refused.status()), (2048, StatusCode::TOO_MANY_REQUESTS));
    }
}
