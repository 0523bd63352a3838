//! Records of running servers under `<store>/run`, from which `narthex ps` lists models without HTTP.
//!
//! A record is a JSON file that its server keeps locked. A file that is not locked belongs to a dead server, and is
//! removed when it is found.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use crate::{error::Error, report::models::ModelStatus};

/// Maximum size of a record, in bytes.
const RECORD_LIMIT: u64 = 16 << 20;

/// Number of reads of a record that does not parse, because its server is just writing it.
const READS: usize = 5;

/// Time between two reads of a record.
const READ_AGAIN: Duration = Duration::from_millis(10);

/// A server that runs on this machine's store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunningServer {
    /// Process id.
    pub pid: u32,
    /// Address that the server listens on, such as `127.0.0.1:8000`.
    pub address: String,
    /// Encryption of its connections.
    #[serde(default)]
    pub encryption: Encryption,
    /// Start time; in JSON as seconds since 1970.
    #[serde(with = "crate::report::unix_seconds")]
    pub started: SystemTime,
    /// Models, as of the last change.
    pub models: Vec<ModelStatus>,
    /// Further names of models, for its clients.
    #[serde(default)]
    pub aliases: BTreeMap<String, String>,
    /// Model for unknown names in requests.
    #[serde(default)]
    pub default_model: Option<String>,
}

impl RunningServer {
    /// Creates the record of this process, which listens on this address. It has no models yet.
    pub fn new(address: &str, encryption: Encryption) -> Self {
        Self {
            pid: std::process::id(),
            address: address.to_owned(),
            encryption,
            started: SystemTime::now(),
            models: Vec::new(),
            aliases: BTreeMap::new(),
            default_model: None,
        }
    }
}

/// Encryption of a server's connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    /// HTTP.
    #[default]
    None,
    /// HTTPS.
    Tls,
}

/// The record of this process. Dropping it removes the file.
pub(crate) struct ServerRecord {
    path: PathBuf,
    file: File,
    server: RunningServer,
}

impl ServerRecord {
    /// Creates and locks the file in an existing folder. Only the user of this process can read it. Never waits: a file
    /// that is locked belongs to another process with the same id, in a container.
    pub(crate) fn create(folder: &Path, server: RunningServer) -> Result<Self, Error> {
        let mut options = OpenOptions::new();
        // Opening a named pipe for both does not block.
        options.create(true).truncate(false).read(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut number = 0;
        let (path, file) = loop {
            let path = folder.join(format!("server-{}-{number}.json", server.pid));
            let file = options.open(&path).map_err(Error::io("write", &path))?;
            match file.try_lock() {
                // A reader removes files that are not locked yet.
                Ok(()) if path.exists() => break (path, file),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => number += 1,
                Err(TryLockError::Error(source)) => return Err(Error::io("write", &path)(source)),
            }
        };
        let mut record = Self { path, file, server };
        record.write_or_warn();
        Ok(record)
    }

    /// Replaces the list of models.
    pub(crate) fn update(&mut self, models: Vec<ModelStatus>) {
        self.server.models = models;
        self.write_or_warn();
    }

    fn write_or_warn(&mut self) {
        if let Err(error) = self.write() {
            tracing::warn!(path = %self.path.display(), %error, "cannot update the record that `narthex ps` reads");
        }
    }

    fn write(&mut self) -> std::io::Result<()> {
        let text = serde_json::to_vec(&self.server)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&text)?;
        self.file.set_len(text.len() as u64)
    }
}

impl Drop for ServerRecord {
    fn drop(&mut self) {
        // A file that remains is harmless, because it is not locked.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns the servers whose records are locked. Stale records are removed.
pub(crate) fn running(folder: &Path) -> Vec<RunningServer> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut servers: Vec<RunningServer> =
        entries.flatten().filter_map(|entry| read_record(&entry.path())).collect();
    servers.sort_by_key(|server| server.pid);
    servers
}

fn read_record(path: &Path) -> Option<RunningServer> {
    if !is_record(path) {
        return None;
    }
    for _ in 0..READS {
        let file = narthex_files::open_regular(path).ok()?;
        if file.try_lock().is_ok() {
            let _ = fs::remove_file(path);
            return None;
        }
        let bytes = narthex_files::read_bounded(file, RECORD_LIMIT).ok()?;
        if let Ok(server) = serde_json::from_slice(&bytes) {
            return Some(server);
        }
        thread::sleep(READ_AGAIN);
    }
    None
}

/// Returns true for the path of a record. The folder may have other files.
fn is_record(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let numbers = name.strip_prefix("server-").and_then(|name| name.strip_suffix(".json")?.split_once('-'));
    numbers.is_some_and(|(pid, number)| pid.parse::<u32>().is_ok() && number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_record_is_seen_and_a_stale_one_removed() {
        let folder = tempfile::tempdir().unwrap();
        let aliases = BTreeMap::from([("gpt-4o".to_owned(), "smollm2:135m".to_owned())]);
        let server = RunningServer { aliases, ..RunningServer::new("127.0.0.1:8000", Encryption::Tls) };
        let record = ServerRecord::create(folder.path(), server.clone()).unwrap();
        let stale = folder.path().join("server-1-0.json");
        fs::write(&stale, "{}").unwrap();
        let seen = running(folder.path());
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].pid, seen[0].address.as_str()), (std::process::id(), "127.0.0.1:8000"));
        assert_eq!((seen[0].encryption, &seen[0].aliases), (Encryption::Tls, &server.aliases));
        assert!(!stale.exists());
        // Processes of two containers have the same id.
        let other = ServerRecord::create(folder.path(), server).unwrap();
        assert_eq!(running(folder.path()).len(), 2);
        drop((record, other));
        assert!(running(folder.path()).is_empty());
    }
}
