//! Small files whose paths are in arguments or environment variables.

use std::path::Path;

use anyhow::Context;

/// Maximum size of a file in bytes.
const LIMIT: u64 = 1 << 20;

/// Reads a small regular file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    narthex_files::read(path, LIMIT).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_small_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![0; LIMIT as usize]).unwrap();
        assert_eq!(read(&path).unwrap().len() as u64, LIMIT);
        std::fs::write(&path, vec![0; LIMIT as usize + 1]).unwrap();
        for path in [&path, folder.path(), Path::new("/dev/zero"), Path::new("/no/such")] {
            let error = format!("{:#}", read(path).unwrap_err());
            assert!(error.starts_with(&format!("cannot read {}: ", path.display())), "{error}");
        }
    }
}
