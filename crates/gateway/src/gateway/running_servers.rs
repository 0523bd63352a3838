//! Records of running servers.

use std::sync::Arc;

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
        let folder = self.library.store.create_run_folder()?;
        let config = self.config();
        let server = RunningServer {
            models: self.models.status(),
            aliases: config.all_aliases(),
            default_model: config.default_model.clone(),
            ..RunningServer::new(address, encryption)
        };
        let record = ServerRecord::create(&folder, server)?;
        *self.server_record.lock() = Some(record);
        let models = Arc::downgrade(&self.models);
        let server_record = self.server_record.clone();
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
        server_record::running(&self.library.store.run_folder())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    use super::*;
    use crate::config::Config;

    #[test]
    fn the_store_of_a_server_is_private() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("store");
        let gateway = Gateway::open(Config { home: Some(root.clone()), ..Config::standard() }).unwrap();
        let run = root.join("run");
        let record = run.join(format!("server-{}-0.json", std::process::id()));
        let check = || {
            let registration = gateway.register_server("127.0.0.1:1", Encryption::None).unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!([&root, &run, &record].map(|path| mode(path)), [0o700, 0o700, 0o600]);
            drop(registration);
        };
        // An earlier version of the program created the folder with the usual mode.
        fs::create_dir_all(&run).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
        check();
        fs::remove_dir_all(&root).unwrap();
        check();
    }
}
