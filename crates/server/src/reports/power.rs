//! Samples of the machine's power, which give answers their energy.

use std::time::Duration;

use narthex_gateway::Gateway;
use tokio::time::{MissedTickBehavior, interval};

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(2);

/// Takes samples until the future is dropped.
pub(crate) async fn watch(gateway: &Gateway) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let gateway = gateway.clone();
        // It reads files. A sample that fails is missing.
        let _ = tokio::task::spawn_blocking(move || gateway.sample_power()).await;
    }
}
