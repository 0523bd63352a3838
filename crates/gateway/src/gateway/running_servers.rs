//! Records of running servers.

use std::{path::PathBuf, sync::Arc};

use parking_lot::Mutex;

use super::Gateway;
use crate::{
    error::Error,
    server_record::{self, Encryption, RunningServer, ServerRecord},
};

/// Record of a running server for `narthex ps`. Dropping it removes the record.
pub struct ServerRegistration(Arc<Mutex<Option<ServerRecord>>>);

impl Drop for ServerRegistration {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// Running servers.
impl Gateway {
    /// Records this process as a server for `narthex ps`, until the registration is dropped.
    pub fn register_server(
        &self,
        address: &str,
        encryption: Encryption,
    ) -> Result<ServerRegistration, Error> {
        let mut record = ServerRecord::create(&self.run_folder(), address, encryption)?;
        record.update(self.models.status());
        *self.server_record.lock() = Some(record);
        let (models, server_record) = (Arc::downgrade(&self.models), self.server_record.clone());
        self.models.set_on_change(Box::new(move || {
            let Some(models) = models.upgrade() else { return };
            if let Some(record) = &mut *server_record.lock() {
                record.update(models.status());
            }
        }));
        Ok(ServerRegistration(self.server_record.clone()))
    }

    /// Lists the servers that run on this store.
    pub fn running_servers(&self) -> Vec<RunningServer> {
        server_record::running(&self.run_folder())
    }

    fn run_folder(&self) -> PathBuf {
        self.library.store.root().join("run")
    }
}
