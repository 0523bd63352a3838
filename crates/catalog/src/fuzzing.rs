//! Entry points for fuzz targets: archives, without the check of their digest, and key files. Not part of the product.

use std::path::Path;

use narthex_spec::progress::Quiet;

use crate::{Cancel, Error, keys, source::archive};

/// Unpacks every member of an archive into a folder.
///
/// # Errors
/// [`Error`] for archives that are broken or hostile.
pub fn unpack(wheel: &Path, into: &Path) -> Result<usize, Error> {
    let everything = |name: &str| Some(name.to_owned());
    archive::unpack("w", wheel, into, &everything, &Quiet, &Cancel::new(false)).map(|files| files.len())
}

/// Parses a key file, encodes its keys and parses the result. Returns the number of keys.
///
/// # Errors
/// The reason if the bytes are not a key file.
///
/// # Panics
/// The encoded keys differ when parsed again.
pub fn read_keys(bytes: &[u8]) -> Result<usize, String> {
    let keys = keys::parse(bytes)?;
    assert_eq!(
        keys::parse(&keys::encode(keys.clone())).as_ref(),
        Ok(&keys),
        "a written file reads otherwise"
    );
    Ok(keys.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::archive::tests::write_wheel;

    #[test]
    fn every_member_is_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("w.whl");
        write_wheel(&wheel, &[("a/b", b"1"), ("c", b"2")]);
        assert_eq!(unpack(&wheel, &folder.path().join("out")).unwrap(), 2);
        write_wheel(&wheel, &[("../a", b"1")]);
        assert!(unpack(&wheel, &folder.path().join("else")).is_err());
    }

    #[test]
    fn key_files_are_read_and_written() {
        let text =
            r#"{"version":1,"keys":[{"name":"a","hash":"HASH","created":1,"limits":{"concurrency":2}}]}"#;
        assert_eq!(read_keys(text.replace("HASH", &"0".repeat(64)).as_bytes()), Ok(1));
        assert!(read_keys(text.as_bytes()).unwrap_err().contains("64 hexadecimal digits"));
    }
}
