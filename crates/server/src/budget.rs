//! Limit on the memory of all request bodies together.
//!
//! A body reserves twice its length: for its bytes, and for the request that is parsed from them. Small bodies have a
//! separate budget, so that they never wait for large ones.

use std::{sync::Arc, time::Duration};

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

/// Bytes for all small bodies, and for all others.
const BUDGETS: [usize; 2] = [32 << 20, 128 << 20];

/// Bytes of one permit.
const UNIT: usize = 1 << 10;

/// Default of [`BodyBudget::wait`].
const WAIT: Duration = Duration::from_secs(15);

/// The budgets of a server.
#[derive(Debug, Clone)]
pub(crate) struct BodyBudget {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Maximum time that a body waits for its share.
    wait: Duration,
}

/// Share of a budget that a body has reserved. Clones share it; dropping the last one releases it.
#[derive(Debug, Clone)]
pub(crate) struct Reservation(Arc<Mutex<OwnedSemaphorePermit>>);

impl BodyBudget {
    pub(crate) fn new() -> Self {
        let [small, large] = BUDGETS.map(|bytes| Arc::new(Semaphore::new(bytes / UNIT)));
        Self { small, large, wait: WAIT }
    }

    /// Waits for the share of a body with `length` bytes.
    pub(crate) async fn reserve(&self, length: usize) -> Result<Reservation, ApiError> {
        let budget = if length <= SMALL_BODY_BYTES { &self.small } else { &self.large };
        let permit = budget.clone().acquire_many_owned(units(length));
        match timeout(self.wait, permit).await {
            Ok(Ok(permit)) => Ok(Reservation(Arc::new(Mutex::new(permit)))),
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
        let mut permit = self.0.lock();
        let unneeded = permit.num_permits().saturating_sub(units(length) as usize);
        drop(permit.split(unneeded));
    }
}

/// Returns the permits for a body of at most [`MAX_BODY_BYTES`].
fn units(length: usize) -> u32 {
    (2 * length.min(MAX_BODY_BYTES)).div_ceil(UNIT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_bodies_wait_for_each_other_and_small_ones_do_not() {
        let budget = BodyBudget { wait: Duration::ZERO, ..BodyBudget::new() };
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
        assert_eq!(budget.large.available_permits() * UNIT, BUDGETS[1]);
    }
}
