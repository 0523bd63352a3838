//! State that every handler shares.

use std::sync::Arc;

use narthex_gateway::Gateway;

use crate::metrics::Metrics;

/// The gateway and the counters of a server.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) gateway: Gateway,
    pub(crate) metrics: Arc<Metrics>,
}
