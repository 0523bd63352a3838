//! Small files whose paths are in arguments or environment variables.

use std::{fs::File, io::Read, path::Path};

use anyhow::Context;

/// Maximum size of a file in bytes.
const LIMIT: u64 = 1 << 20;

/// Reads a small regular file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    read_regular(path).with_context(|| format!("cannot read {}", path.display()))
}

fn read_regular(path: &Path) -> anyhow::Result<Vec<u8>> {
    anyhow::ensure!(std::fs::metadata(path)?.is_file(), "expected a regular file");
    let mut bytes = Vec::new();
    File::open(path)?.take(LIMIT + 1).read_to_end(&mut bytes)?;
    anyhow::ensure!(bytes.len() as u64 <= LIMIT, "expected at most {LIMIT} bytes");
    Ok(bytes)
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
