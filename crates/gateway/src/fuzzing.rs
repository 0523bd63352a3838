//! Entry points of fuzz targets: reads a package up to the point where ONNX Runtime reads its graphs, and files of the
//! prefix cache.

use std::path::Path;

use narthex_device::fuzzing::read_package;
use narthex_engine::prefix_storage::BlockKey;
use narthex_spec::{ModelName, Scheme};

use crate::{
    Error,
    library::{package, package_key::PackageKey},
    load::prefix_cache::block_file::{self, FileLabel},
};

/// Reads the manifest of the package in `folder`, and the files that an executor reads.
///
/// # Errors
/// [`Error`] for a package that is damaged.
pub fn open_package(folder: &Path, name: &ModelName) -> Result<(), Error> {
    let key = PackageKey { name: name.clone(), scheme: Scheme::W8 };
    let manifest = package::read_manifest(folder, &key)?;
    Ok(read_package(folder, &manifest)?)
}

/// Reads the payload of a file of the prefix cache, without the check of its digest. Writes the block, and reads the
/// file with the check. Returns the number of tokens.
///
/// # Errors
/// The reason if the bytes are not a block.
///
/// # Panics
/// The written file has another block, or the bytes themselves are accepted as a file.
pub fn read_prefix_block(bytes: &[u8]) -> Result<usize, String> {
    let label = FileLabel { identity: [1; 32], key: BlockKey { index: 2, hash: [3; 32] } };
    let is_forged = block_file::decode(bytes, label).is_ok();
    assert!(!is_forged, "a file without the digest of its bytes was accepted");
    let block = block_file::decode_payload(bytes)?;
    if let Some(written) = block_file::encode(label, &block) {
        assert_eq!(
            block_file::decode(&written, label).as_ref(),
            Ok(&block),
            "a written file reads otherwise"
        );
    }
    Ok(block.tokens())
}
