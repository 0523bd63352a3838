//! The models of this machine: names, installed packages, the catalogue, imports, exports and runtime libraries.
//! Nothing here loads a model.

pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod model_ref;
mod models;
pub(crate) mod package;
pub(crate) mod package_key;
mod package_name;
pub(crate) mod runtimes;

use std::sync::Arc;

use narthex_catalog::{index::Catalog, network::Network, store::Store};

use crate::{config::Config, error::Error};

pub use models::DEFAULT_SCHEME;
pub(crate) use models::{RequestedModel, schemes_from};

/// The store and the catalogue, with their settings.
pub(crate) struct Library {
    pub(crate) config: Arc<Config>,
    pub(crate) store: Store,
    pub(crate) catalog: Catalog,
}

impl Library {
    /// Opens the store and reads the built-in catalogue.
    pub(crate) fn open(config: Config) -> Result<Self, Error> {
        let store = Store::open(config.home.clone())?;
        let store = match config.network {
            Network::Allowed => store,
            Network::CacheOnly => store.offline(),
        };
        Ok(Self { config: Arc::new(config), store, catalog: Catalog::builtin()? })
    }
}
