//! The devices of this machine for the health report. Their detection reads files, so a report waits for it only briefly.

use std::{sync::Arc, time::Duration};

use narthex_gateway::{Gateway, devices::DeviceStatus};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::timeout};

/// Maximum time that a report waits for a new detection. After that, the report uses the last result.
const WAIT: Duration = Duration::from_millis(50);

/// Result of the last detection. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct DeviceList {
    last: Arc<Mutex<Vec<DeviceStatus>>>,
    /// One permit, so that one detection runs at a time.
    detection: Arc<Semaphore>,
}

impl DeviceList {
    /// Detects the devices.
    pub(crate) fn new(gateway: &Gateway) -> Self {
        let last = Arc::new(Mutex::new(gateway.devices()));
        Self { last, detection: Arc::new(Semaphore::new(1)) }
    }

    /// Returns the devices from a new detection if it takes at most [`WAIT`], else from the last one.
    pub(crate) async fn current(&self, gateway: &Gateway) -> Vec<DeviceStatus> {
        if let Ok(permit) = self.detection.clone().try_acquire_owned() {
            let gateway = gateway.clone();
            let last = self.last.clone();
            let detection = tokio::task::spawn_blocking(move || {
                let devices = gateway.devices();
                *last.lock() = devices;
                drop(permit);
            });
            let _ = timeout(WAIT, detection).await;
        }
        self.last.lock().clone()
    }
}
