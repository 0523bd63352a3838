//! Entry point for fuzz targets: archives, without the check of their digest. Not part of the product.

use std::path::Path;

use narthex_spec::progress::Quiet;

use crate::{Cancel, Error, source::archive};

/// Unpacks every member of an archive into a folder.
///
/// # Errors
/// [`Error`] for archives that are broken or hostile.
pub fn unpack(wheel: &Path, into: &Path) -> Result<usize, Error> {
    let everything = |name: &str| Some(name.to_owned());
    archive::unpack("w", wheel, into, &everything, &Quiet, &Cancel::new(false)).map(|files| files.len())
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
}
