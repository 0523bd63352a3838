//! Return of freed memory to the system after large requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use narthex_gateway::release_freed_memory;
use tokio::{runtime::Handle, task::spawn_blocking, time::sleep};

/// Time between the end of a request and the return of its memory. Requests that end in this time share one return.
const DELAY: Duration = Duration::from_secs(1);

/// Returns freed memory to the system, at most once in each [`DELAY`].
#[derive(Debug, Clone, Default)]
pub(crate) struct FreedMemory {
    is_scheduled: Arc<AtomicBool>,
}

impl FreedMemory {
    /// Schedules a return, unless one is scheduled. Does nothing outside of a runtime.
    pub(crate) fn schedule_release(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.is_scheduled.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_scheduled = self.is_scheduled.clone();
        runtime.spawn(async move {
            sleep(DELAY).await;
            is_scheduled.store(false, Ordering::Relaxed);
            spawn_blocking(release_freed_memory);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_that_end_together_share_a_release() {
        let freed = FreedMemory::default();
        freed.schedule_release();
        freed.schedule_release();
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 1);
        while freed.is_scheduled.load(Ordering::Relaxed) {
            sleep(DELAY / 10).await;
        }
    }

    #[test]
    fn nothing_happens_outside_of_a_runtime() {
        let freed = FreedMemory::default();
        freed.schedule_release();
        assert!(!freed.is_scheduled.load(Ordering::Relaxed));
    }
}
