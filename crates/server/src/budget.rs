//! Limits on the memory of all requests together.
//!
//! A body reserves twice its length before it is read: for its bytes, and for the texts of the request that is parsed
//! from them. It reserves the memory of its values before it is parsed, and a request that tokenises a whole text or
//! copies a stored conversation reserves memory for this work. The three have budgets of their own, so that a request
//! that holds a share of one and waits for the next never waits for itself. Each budget has a separate part for small
//! shares, so that these never wait for large ones.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::error::ApiError;

/// Maximum size of a body.
pub(crate) const MAX_BODY_BYTES: usize = 32 << 20;

/// Maximum size of a small body.
pub(crate) const SMALL_BODY_BYTES: usize = 256 << 10;

/// Bytes for the small shares of a budget, and for all others.
const BUDGET_BYTES: [usize; 2] = [32 << 20, 128 << 20];

/// Maximum bytes of a small share for parsed values.
const SMALL_VALUES_BYTES: usize = 1 << 20;

/// Maximum bytes of a small share for work.
const SMALL_WORK_BYTES: usize = 4 << 20;

/// Bytes of one permit.
const UNIT: usize = 1 << 10;

/// Default of [`BodyBudget::wait`].
const WAIT: Duration = Duration::from_secs(15);

/// The budgets of a server.
#[derive(Debug, Clone)]
pub(crate) struct BodyBudget {
    bodies: Pool,
    values: Pool,
    work: Pool,
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
}

/// Shares of the budgets that a request has reserved. Clones share them; dropping the last one releases them.
#[derive(Debug, Clone)]
pub(crate) struct Reservation(Arc<Mutex<Shares>>);

#[derive(Debug)]
struct Shares {
    body: OwnedSemaphorePermit,
    others: Vec<OwnedSemaphorePermit>,
}

impl Pool {
    fn new(small_bytes: usize) -> Self {
        let [small, large] = BUDGET_BYTES.map(|bytes| Arc::new(Semaphore::new(bytes / UNIT)));
        Self { small, large, small_bytes }
    }
}

impl BodyBudget {
    pub(crate) fn new() -> Self {
        Self {
            bodies: Pool::new(2 * SMALL_BODY_BYTES),
            values: Pool::new(SMALL_VALUES_BYTES),
            work: Pool::new(SMALL_WORK_BYTES),
            wait: WAIT,
        }
    }

    /// Waits for the share of a body with `length` bytes.
    pub(crate) async fn reserve(&self, length: usize) -> Result<Reservation, ApiError> {
        let body = self.share(&self.bodies, 2 * length.min(MAX_BODY_BYTES)).await?;
        Ok(Reservation(Arc::new(Mutex::new(Shares { body, others: Vec::new() }))))
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

    /// Waits for the share of work that takes this memory, which the reservation keeps. Work beyond the budget waits for
    /// all of it.
    pub(crate) async fn reserve_work(&self, held: &Reservation, bytes: usize) -> Result<(), ApiError> {
        let share = self.share(&self.work, bytes.min(BUDGET_BYTES[1])).await?;
        held.0.lock().others.push(share);
        Ok(())
    }

    async fn share(&self, pool: &Pool, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let part = if bytes <= pool.small_bytes { &pool.small } else { &pool.large };
        match timeout(self.wait, part.clone().acquire_many_owned(units(bytes))).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(ApiError::overloaded(
                "the bodies of other requests take all the memory for bodies; try again in a moment",
                self.wait,
            )),
        }
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

/// Returns the permits for bytes within a budget.
fn units(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn impatient() -> BodyBudget {
        BodyBudget { wait: Duration::ZERO, ..BodyBudget::new() }
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
                Err(error) => break error,
            }
        };
        assert_eq!((held.len(), refused.status()), (BUDGET_BYTES[1] / values, StatusCode::TOO_MANY_REQUESTS));
        let small = budget.reserve(1000).await.unwrap();
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
}
