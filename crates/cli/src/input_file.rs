//! Small files whose paths are in arguments or environment variables.

use std::path::Path;

use anyhow::Context;

/// Maximum size of a file in bytes.
const LIMIT: u64 = 1 << 20;

/// Reads a small regular file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    narthex_files::read(path, LIMIT).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads a small text in one of the encodings of [`narthex_files::user_text`].
pub(crate) fn text(path: &Path) -> anyhow::Result<String> {
    narthex_files::user_text(read(path)?).with_context(|| format!("cannot read {}", path.display()))
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

    #[test]
    fn texts_may_be_those_of_windows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"\xff\xfe{\0}\0").unwrap();
        assert_eq!(text(&path).unwrap(), "{}");
        std::fs::write(&path, b"\xff").unwrap();
        let error = format!("{:#}", text(&path).unwrap_err());
        assert!(error.starts_with(&format!("cannot read {}: invalid utf-8", path.display())), "{error}");
    }
}
