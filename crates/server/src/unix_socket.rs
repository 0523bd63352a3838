//! Unix socket to which only the user of this process can connect.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::{fs::FileTypeExt, fs::PermissionsExt, net::UnixStream as BlockingStream},
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

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
    /// of file.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        check_free(path)?;
        // The file is created under another name and renamed once only its user can open it.
        let mut new = OsString::from(path);
        new.push(".new");
        let new = PathBuf::from(new);
        if let Err(error) = fs::remove_file(&new)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let listener = UnixListener::bind(&new)?;
        let placed = fs::set_permissions(&new, fs::Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&new, path));
        if let Err(error) = placed {
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        Ok(Self { listener, path: path.to_owned() })
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

fn check_free(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(meta) if !meta.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is not a socket"))
        }
        Ok(_) => match BlockingStream::connect(path) {
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
            // The socket has no listener.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_and_replaces_a_dead_one_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("narthex.sock");
        let socket = UnixSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let taken = UnixSocket::bind(&path).err().unwrap();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        assert!(!path.exists());
        // A killed process leaves its file.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        UnixSocket::bind(&path).unwrap();
        fs::write(&path, "text").unwrap();
        assert_eq!(UnixSocket::bind(&path).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }
}
