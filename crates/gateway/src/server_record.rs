//! Records of running servers under `<store>/run`, so that `ps` can tell what is loaded without asking over HTTP.
//!
//! A record is a JSON file that its server keeps locked; a file that can be locked belongs to a dead server and is
//! removed by whoever finds it.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use crate::{error::Error, report::models::ModelStatus};

/// A server that is running on this machine's store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunningServer {
    /// Process id.
    pub pid: u32,
    /// Address it listens on: `127.0.0.1:8000`.
    pub address: String,
    /// When it started; in JSON seconds since 1970.
    #[serde(with = "crate::report::unix_seconds")]
    pub started: SystemTime,
    /// Its models, as of the last change.
    pub models: Vec<ModelStatus>,
}

/// A server's own record; dropping it takes the record away.
pub(crate) struct Announcement {
    path: PathBuf,
    file: File,
    server: RunningServer,
}

impl Announcement {
    pub(crate) fn start(folder: &Path, address: &str) -> Result<Self, Error> {
        let failed = |what: String| move |source| Error::Io { what, source };
        fs::create_dir_all(folder).map_err(failed(format!("cannot create {}", folder.display())))?;
        let pid = std::process::id();
        let path = folder.join(format!("server-{pid}.json"));
        let what = format!("cannot write {}", path.display());
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .open(&path)
            .map_err(failed(what.clone()))?;
        file.lock().map_err(failed(what))?;
        let server = RunningServer {
            pid,
            address: address.to_owned(),
            started: SystemTime::now(),
            models: Vec::new(),
        };
        let mut record = Self { path, file, server };
        record.update(Vec::new());
        Ok(record)
    }

    /// Replaces the list of models.
    pub(crate) fn update(&mut self, models: Vec<ModelStatus>) {
        self.server.models = models;
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

impl Drop for Announcement {
    fn drop(&mut self) {
        // A record left behind is harmless: nobody holds its lock.
        let _ = fs::remove_file(&self.path);
    }
}

/// The servers whose records are locked; stale records are removed.
pub(crate) fn running(folder: &Path) -> Vec<RunningServer> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut servers: Vec<RunningServer> =
        entries.flatten().filter_map(|entry| read_record(&entry.path())).collect();
    servers.sort_by_key(|server| server.pid);
    servers
}

fn read_record(path: &Path) -> Option<RunningServer> {
    if path.extension()? != "json" {
        return None;
    }
    let mut file = File::open(path).ok()?;
    if file.try_lock().is_ok() {
        let _ = fs::remove_file(path);
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_record_is_seen_and_a_stale_one_removed() {
        let folder = tempfile::tempdir().unwrap();
        let record = Announcement::start(folder.path(), "127.0.0.1:8000").unwrap();
        let stale = folder.path().join("server-1.json");
        fs::write(&stale, "{}").unwrap();
        let seen = running(folder.path());
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].pid, seen[0].address.as_str()), (std::process::id(), "127.0.0.1:8000"));
        assert!(!stale.exists());
        drop(record);
        assert!(running(folder.path()).is_empty());
    }
}
