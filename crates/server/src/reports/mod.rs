//! Reports about the server: `/health`, `/health/history`, `/health/requests`, the metrics, and what they read.

pub(crate) mod devices;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod memory_reports;
pub(crate) mod metrics;
pub(crate) mod power;
pub(crate) mod requests;

/// Rounds to one decimal.
pub(crate) fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
