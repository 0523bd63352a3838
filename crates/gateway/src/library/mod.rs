//! The models of this machine: names, installed packages, the catalogue, imports, exports and runtime libraries.
//! Nothing here loads a model.

pub(crate) mod english_files;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod model_ref;
mod models;
pub(crate) mod package;
pub(crate) mod package_key;
mod package_name;
pub(crate) mod runtimes;
pub(crate) mod suitability;
mod upstreams;

use std::sync::{Arc, OnceLock};

use narthex_catalog::{index::Catalog, network::Network, store::Store};
use narthex_spec::ModelName;

use self::suitability::MachineSpeed;
use crate::{config::Config, error::Error, model_settings::ResidenceSettings};

pub use models::DEFAULT_SCHEME;
pub(crate) use models::{RequestedModel, schemes_from};

/// The store and the catalogue, with their settings.
pub(crate) struct Library {
    pub(crate) config: Arc<Config>,
    pub(crate) store: Store,
    pub(crate) catalog: Catalog,
    machine_speed: OnceLock<MachineSpeed>,
}

impl Library {
    /// Opens the store and reads the built-in catalogue.
    pub(crate) fn open(config: Config) -> Result<Self, Error> {
        let store = Store::open(config.home.clone())?;
        let store = match config.network {
            Network::Allowed => store,
            Network::CacheOnly => store.offline(),
        };
        Ok(Self {
            config: Arc::new(config.with_kv_memory()),
            store,
            catalog: Catalog::builtin()?,
            machine_speed: OnceLock::new(),
        })
    }

    /// Returns the same library with other settings. The store, the network and the memory for KV caches stay, as far as
    /// the new settings state none.
    pub(crate) fn with_config(&self, config: Config) -> Self {
        let kv_budget = config.kv_budget.or(self.config.kv_budget);
        Self {
            config: Arc::new(Config { kv_budget, kv_total: self.config.kv_total, ..config }),
            store: self.store.clone(),
            catalog: self.catalog.clone(),
            machine_speed: self.machine_speed.clone(),
        }
    }

    /// Returns the settings for loading a model.
    pub(crate) fn config_of(&self, name: &ModelName) -> Arc<Config> {
        match self.settings(name) {
            Some(settings) => Arc::new(self.config.with_loading(&settings.load)),
            None => self.config.clone(),
        }
    }

    /// Returns how long a model stays in memory.
    pub(crate) fn residence_of(&self, name: &ModelName) -> ResidenceSettings {
        let own = self.settings(name).map(|settings| settings.residence).unwrap_or_default();
        ResidenceSettings { keep_alive: own.keep_alive.or(Some(self.config.keep_alive)), ..own }
    }

    /// Returns the speed of this machine, which is measured at the first call.
    pub(crate) fn machine_speed(&self) -> &MachineSpeed {
        self.machine_speed.get_or_init(|| MachineSpeed::measure(&self.store))
    }
}
