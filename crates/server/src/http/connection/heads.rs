//! Limit on the memory of the heads of concurrent requests.
//!
//! The number of connections is limited, but each HTTP/2 connection may have many requests. The first active request of
//! a connection is always served. Further ones share a budget for their heads and for what an active request takes.

use std::sync::Arc;

use axum::http::Request;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum bytes of the heads of further requests.
const BUDGET_BYTES: usize = 32 << 20;

/// Memory of an active request without the fields of its head: its task, its stream and a short answer.
const REQUEST_BYTES: usize = 8 << 10;

/// Memory of a field of a head, without its name and its value.
const FIELD_BYTES: usize = 128;

/// Bytes of one permit.
const UNIT: usize = 1 << 10;

/// The budget of a server. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct HeadBudget(Arc<Semaphore>);

/// Memory of a head. Dropping it releases the memory.
#[derive(Debug)]
pub(super) struct HeadMemory {
    _share: Option<OwnedSemaphorePermit>,
}

/// No memory is left for another request. Its stream is reset.
#[derive(Debug, thiserror::Error)]
#[error("all memory for request heads is in use")]
pub(super) struct NoRoomForHead;

impl HeadBudget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET_BYTES / UNIT)))
    }

    /// Reserves the memory of a request's head. `is_first` is true if no other request of its connection is active.
    pub(super) fn reserve<B>(
        &self,
        request: &Request<B>,
        is_first: bool,
    ) -> Result<HeadMemory, NoRoomForHead> {
        if is_first {
            return Ok(HeadMemory { _share: None });
        }
        let fields = request.headers().iter();
        let fields: usize = fields.map(|(name, value)| FIELD_BYTES + name.as_str().len() + value.len()).sum();
        let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
        let units = (REQUEST_BYTES + fields + target).div_ceil(UNIT);
        let units = u32::try_from(units).map_err(|_| NoRoomForHead)?;
        let share = self.0.clone().try_acquire_many_owned(units).map_err(|_| NoRoomForHead)?;
        Ok(HeadMemory { _share: Some(share) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn further_requests_of_connections_share_a_budget() {
        let budget = HeadBudget::new();
        let large = Request::builder().header("a", "x".repeat(24 << 10)).body(()).unwrap();
        let small = Request::builder().uri("/health").body(()).unwrap();
        let mut held = Vec::new();
        while let Ok(memory) = budget.reserve(&large, false) {
            held.push(memory);
        }
        assert!((900..1024).contains(&held.len()), "{}", held.len());
        held.push(budget.reserve(&large, true).unwrap());
        while let Ok(memory) = budget.reserve(&small, false) {
            held.push(memory);
        }
        held.push(budget.reserve(&small, true).unwrap());
        drop(held);
        assert_eq!(budget.0.available_permits() * UNIT, BUDGET_BYTES);
    }

    #[test]
    fn many_fields_count() {
        let budget = HeadBudget::new();
        let fields = (0..1000).map(|index| format!("a{index}"));
        let many =
            fields.fold(Request::builder(), |request, name| request.header(name, "")).body(()).unwrap();
        let memory = budget.reserve(&many, false).unwrap();
        assert!(BUDGET_BYTES - budget.0.available_permits() * UNIT > 1000 * FIELD_BYTES);
        drop(memory);
    }
}
