//! LoRA adapters for a compile.

use std::path::PathBuf;

use narthex_catalog::{
    fetch,
    resolve::{ModelId, ModelRef},
};
use narthex_checkpoint::Adapter;
use narthex_spec::{ProgressSink, adapter::AdapterScale};

use crate::{cancel::Cancel, error::Error, library::Library};

/// Opens the adapter at a path, or in a repository of the hub, which is fetched.
pub(crate) fn open(
    library: &Library,
    reference: &str,
    scale: AdapterScale,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<Adapter, Error> {
    let (path, repo) = match ModelRef::parse(reference) {
        Ok(ModelRef::Id(ModelId::Hub(mut hub))) => {
            if hub.files.is_empty() {
                hub.files = Adapter::FILES.into_iter().chain(["*.gguf"]).map(str::to_owned).collect();
            }
            let repo = hub.repo.clone();
            let resolved = ModelId::Hub(hub).resolve(&library.catalog)?;
            let files = fetch::fetch(&library.store, &resolved, progress, cancel.flag())?;
            (files.path, Some(repo))
        }
        Ok(ModelRef::Local(path)) => (path, None),
        Ok(ModelRef::Id(ModelId::Catalogue(_))) | Err(_) => (PathBuf::from(reference), None),
    };

    let adapter = Adapter::open(&path, scale).map_err(|error| Error::invalid("lora", error.to_string()))?;
    Ok(match repo {
        Some(repo) => adapter.named(repo),
        None => adapter,
    })
}
