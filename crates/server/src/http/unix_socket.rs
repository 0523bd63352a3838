//! Unix socket to which only the user of this process can connect.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    net::{self, UnixListener, UnixStream},
    time::{Instant, sleep},
};

/// Maximum number of connections that wait to be accepted, as for Tokio's TCP listeners.
const BACKLOG: u32 = 1024;

/// Maximum time that a start waits for another one in the same folder.
const LOCK_TIME: Duration = Duration::from_secs(5);

/// Interval at which the lock of a folder is tried.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// A listening socket. Dropping it removes its file.
pub(crate) struct UnixSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

impl UnixSocket {
    /// Listens at a path. Replaces a socket without a listener.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if another program listens there, [`io::ErrorKind::AlreadyExists`] for another kind
    /// of file, [`io::ErrorKind::ResourceBusy`] if another program locks the folder.
    pub(crate) async fn bind(path: &Path) -> io::Result<Self> {
        // Another start would remove the new socket as dead before it listens.
        let _lock = lock_folder(path).await?;
        remove_dead(path).await?;
        match create(path)?.listen(BACKLOG) {
            Ok(listener) => Ok(Self { listener, path: path.to_owned() }),
            Err(error) => {
                let _ = fs::remove_file(path);
                Err(error)
            }
        }
    }

    /// Returns the path of the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // A file that remains is replaced at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

/// Locks the folder of a path until the returned file is closed.
async fn lock_folder(path: &Path) -> io::Result<File> {
    // With the dot, a named pipe in the place of the folder is refused instead of waited for.
    let folder = File::open(path.parent().unwrap_or(path).join("."))?;
    let start = Instant::now();
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_TIME => sleep(LOCK_POLL).await,
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another program has locked its folder",
                ));
            }
            // Some network file systems have no locks for folders. Then only one start at a time is safe.
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, "the folder of the Unix socket cannot be locked");
                return Ok(folder);
            }
        }
    }
}

/// Removes a socket without a listener.
async fn remove_dead(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a file that is not a socket exists there",
            ));
        }
        Ok(_) => {}
    }
    // This never blocks, unlike the connect of the standard library while the queue of the listener is full.
    let removed = match UnixStream::connect(path).await {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        // The listener has ended and removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Creates a socket that does not listen yet. The umask determines its first mode, but nobody can connect before it
/// listens.
fn create(path: &Path) -> io::Result<net::UnixSocket> {
    let socket = net::UnixSocket::new_stream()?;
    socket.bind(path)?;
    match fs::set_permissions(path, fs::Permissions::from_mode(0o600)) {
        Ok(()) => Ok(socket),
        Err(error) => {
            let _ = fs::remove_file(path);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_and_replaces_a_dead_one_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("narthex.sock");
        let socket = UnixSocket::bind(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let taken = UnixSocket::bind(&path).await.err().unwrap();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        assert!(!path.exists());
        // A killed process leaves its file.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        UnixSocket::bind(&path).await.unwrap();
        fs::write(&path, "text").unwrap();
        assert_eq!(UnixSocket::bind(&path).await.err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }

    #[tokio::test]
    async fn nobody_can_connect_before_the_socket_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("narthex.sock");
        let socket = create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let _listener = socket.listen(BACKLOG).unwrap();
        UnixStream::connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn no_other_file_of_the_folder_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("narthex.sock"), folder.path().join("narthex.sock.new"));
        fs::write(&other, "text").unwrap();
        drop(UnixSocket::bind(&path).await.unwrap());
        assert_eq!(fs::read_to_string(&other).unwrap(), "text");
    }

    #[tokio::test]
    async fn the_longest_path_of_the_system_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let longest = if cfg!(target_os = "linux") { 107 } else { 103 };
        let name = "s".repeat(longest - folder.path().as_os_str().len() - 1);
        let socket = UnixSocket::bind(&folder.path().join(name)).await.unwrap();
        assert_eq!(socket.path().as_os_str().len(), longest);
    }

    #[tokio::test]
    async fn two_starts_in_a_folder_follow_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("narthex.sock");
        let other = File::open(folder.path()).unwrap();
        other.lock().unwrap();
        assert!(timeout(Duration::from_millis(100), UnixSocket::bind(&path)).await.is_err());
        assert!(!path.exists());
        drop(other);
        UnixSocket::bind(&path).await.unwrap();
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_listener_whose_queue_is_full_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("narthex.sock");
        let _listener = create(&path).unwrap().listen(0).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match UnixStream::connect(&path).await {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let taken = UnixSocket::bind(&path).await.err().unwrap();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }
}
