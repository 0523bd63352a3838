//! The memory of this process for reports. Reading it opens files of the system, so reports that are close in time share
//! one reading.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use narthex_gateway::MemoryReport;
use parking_lot::Mutex;

/// Maximum age of a reading.
const MAX_AGE: Duration = Duration::from_millis(50);

/// The last reading. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryReports(Arc<Mutex<Option<Reading>>>);

#[derive(Debug, Clone, Copy)]
struct Reading {
    time: Instant,
    report: MemoryReport,
}

impl MemoryReports {
    /// Returns the last reading if it is not too old at `now`, else a new one.
    pub(crate) fn at(&self, now: Instant, read: impl FnOnce() -> MemoryReport) -> MemoryReport {
        let mut last = self.0.lock();
        if let Some(Reading { time, report }) = *last
            && now.saturating_duration_since(time) <= MAX_AGE
        {
            return report;
        }
        let report = read();
        *last = Some(Reading { time: now, report });
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_at_once_share_a_reading() {
        let (reports, start) = (MemoryReports::default(), Instant::now());
        let read = |weights_bytes| MemoryReport {
            resident_bytes: None,
            weights_bytes,
            kv_used_bytes: 0,
            kv_budget_bytes: 0,
            total_bytes: None,
            free_bytes: None,
            warning_below_bytes: None,
        };
        let check = |age, weights, expect| {
            assert_eq!(reports.at(start + age, || read(weights)).weights_bytes, expect);
        };
        check(Duration::ZERO, 1, 1);
        check(MAX_AGE, 2, 1);
        check(2 * MAX_AGE, 3, 3);
        check(2 * MAX_AGE, 4, 3);
    }
}
