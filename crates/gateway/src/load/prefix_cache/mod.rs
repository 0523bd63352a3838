//! Prefixes of prompts in files, from which a model answers after a restart.
//!
//! Each model has a folder of its own, named after its [identity]: what keys and values depend on beside
//! their tokens. [`block_file`] is the format of a file, [`folder`] reads, writes and evicts files, and [`storage`]
//! connects them to the engine. The cache never makes a load or an answer fail: files that cannot be read are ignored,
//! and a folder that cannot be written is read only.

pub(crate) mod block_file;
mod folder;
mod storage;

use narthex_catalog::store::Store;
use narthex_engine::{
    executor::Limits,
    prefix_storage::{BLOCK_TOKENS, PrefixStorage},
    worker::StorageProgress,
};
use narthex_spec::{
    DeviceKind,
    arch::{Steps, Structure},
};

use crate::{config::PrefixCacheConfig, load::request::LoadRequest, report::placement::PlacementReport};
use folder::{FolderLimits, PrefixFolder};
use storage::FileStorage;

/// Maximum number of bytes of a file in addition to its keys and values.
const FILE_OVERHEAD: u64 = 1 << 20;

/// Opens the prefix cache of a decoder that runs as `placement` reports. Returns `None` if it cannot be used, with a
/// warning.
pub(crate) fn open(
    config: &PrefixCacheConfig,
    request: &LoadRequest<'_>,
    placement: &PlacementReport,
    limits: &Limits,
    progress: &StorageProgress,
) -> Option<Box<dyn PrefixStorage>> {
    let name = request.package.key.name.clone();
    if let Some(reason) = unsuitable(&request.manifest().architecture, placement, limits) {
        tracing::info!("prefixes of {name} are not stored: {reason}");
        return None;
    }

    let opened = identity(request, placement, limits).and_then(|identity| {
        // An executor may store keys and values in a wider type than its accounting states.
        let block = (limits.kv.bytes_per_token as u64).saturating_mul(4 * BLOCK_TOKENS as u64);
        let limits = FolderLimits { total: config.bytes, file: block.saturating_add(FILE_OVERHEAD) };
        let folder = PrefixFolder::new(&config.folder, identity, limits);
        FileStorage::open(folder, name.clone(), progress.clone()).map_err(|error| error.to_string())
    });

    match opened {
        Ok(storage) => Some(Box::new(storage)),
        Err(reason) => {
            tracing::warn!(
                "prefixes of {name} are not stored in {}: {reason}; check --prefix-cache-dir",
                config.folder.display()
            );
            None
        }
    }
}

/// Returns the reason if the keys and values of a model's tokens cannot be used in another sequence, or if that saves no
/// time.
fn unsuitable(structure: &Structure, placement: &PlacementReport, limits: &Limits) -> Option<&'static str> {
    match structure {
        _ if limits.kv.has_states() => Some("its layers have states, which are not those of single tokens"),
        Structure::Decoder(decoder) if decoder.switch().is_some() && placement.decode.is_some() => {
            Some("its keys depend on the length of the whole text, and two devices share it")
        }
        Structure::ImportedDecoder(imported) if imported.steps == Steps::OneAfterPast => {
            Some("its graph runs a prompt after a prefix token by token")
        }
        _ => None,
    }
}

/// Returns the digest of everything that keys and values depend on, except the tokens: the package, which states the
/// layout of the cache, the device with its software, and the version of Narthex.
fn identity(
    request: &LoadRequest<'_>,
    placement: &PlacementReport,
    limits: &Limits,
) -> Result<[u8; 32], String> {
    let package = Store::package_digest(&request.package.folder).map_err(|error| error.to_string())?;
    let mut parts = vec![
        format!("prefix cache {}", block_file::VERSION),
        format!("narthex {}", env!("CARGO_PKG_VERSION")),
        format!("package {package}"),
        format!("device {}", placement.name()),
        format!("runtime {}", request.runtime.version()),
        format!("tokens {BLOCK_TOKENS}, {} bytes each", limits.kv.bytes_per_token),
    ];
    if placement.place().devices().iter().any(|device| device.kind() != DeviceKind::Cpu) {
        parts.extend(request.facts.drivers.iter().map(|driver| format!("driver {}", driver.text)));
    }
    Ok(*blake3::hash(parts.join("\n").as_bytes()).as_bytes())
}
