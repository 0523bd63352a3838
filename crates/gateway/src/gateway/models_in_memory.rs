//! Methods for the models in memory.

use std::sync::Arc;

use narthex_device::energy::Meter;

use super::Gateway;
use crate::{
    config::Config,
    energy::{ENERGY, PowerReport},
    error::Error,
    library::RequestedModel,
    load::residency::ModelMemory,
    model_settings::KeepAlive,
    report::{load_forecast::LoadForecast, memory::MemoryReport, models::ModelStatus},
};

/// Models in memory.
impl Gateway {
    /// Returns the status of every model that was requested since the gateway was opened.
    pub fn status(&self) -> Vec<ModelStatus> {
        self.models.drop_stale();
        let mut status = self.models.status();
        status.retain(|model| self.rights.allows(&model.name));
        status
    }

    /// Measures the memory of this process and of the machine.
    pub fn memory(&self) -> MemoryReport {
        MemoryReport::measure(&self.models.status())
    }

    /// Takes a sample of the machine's power. Answers have an energy ([`AnswerEnergy`](crate::AnswerEnergy)) if this is called
    /// every few seconds, and if this process can read a counter.
    pub fn sample_power(&self) {
        ENERGY.sample(Meter::here);
    }

    /// Returns the machine's power as of the last sample; `None` if this process can read no counter.
    pub fn power(&self) -> Option<PowerReport> {
        ENERGY.report()
    }

    /// Returns what a load of an installed model would take from the memory, and which models would be unloaded for it.
    ///
    /// # Errors
    /// [`Error::UnknownModel`] and [`Error::NotInstalled`].
    pub fn forecast_load(&self, model: &str) -> Result<LoadForecast, Error> {
        let RequestedModel { key, .. } = self.resolve(model)?;
        let manifest = self.library.manifest(&key)?;
        let memory = ModelMemory::of(&self.library.config_of(&key.name), &manifest);
        Ok(self.models.forecast(&key, memory))
    }

    /// Removes a model that a request names from memory. Requests that already use it continue with it.
    pub fn unload(&self, model: &str) -> Result<(), Error> {
        let RequestedModel { key, .. } = self.resolve(model)?;
        self.models.evict(&key);
        Ok(())
    }

    /// Sets the time that a model in memory stays there after its last request, until it is loaded again.
    pub fn set_keep_alive(&self, model: &str, keep_alive: KeepAlive) -> Result<(), Error> {
        let RequestedModel { key, .. } = self.resolve(model)?;
        self.models.set_keep_alive(&key, keep_alive);
        self.models.unload_expired_in_background()
    }

    /// Returns a gateway with other settings over the same models. This gateway keeps its own.
    ///
    /// The names of models and the settings of answers apply to each request to the new gateway, and the times that models
    /// stay in memory apply to the models there too. A model in memory keeps its other settings until it is loaded again.
    /// The store, the network, the runtime, the number of threads, the devices for all models, `max_models`, `kv_total`,
    /// `weights_total`, `load_wait`, `retry_failed_after` and the prefix cache stay those of this gateway.
    ///
    /// ```
    /// use narthex_gateway::{Config, Gateway};
    ///
    /// # fn main() -> Result<(), narthex_gateway::Error> {
    /// # let home = tempfile::tempdir().unwrap();
    /// let config = Config { home: Some(home.path().to_owned()), ..Config::standard() };
    /// let gateway = Gateway::open(config.clone())?;
    /// let aliases = [("gpt-4o".to_owned(), "smollm2:135m".to_owned())].into();
    /// let renamed = gateway.with_settings(Config { aliases, ..config })?;
    /// assert!(renamed.is_alias("gpt-4o") && !gateway.is_alias("gpt-4o"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Self::open`] about the names of models.
    pub fn with_settings(&self, config: Config) -> Result<Self, Error> {
        let current = &*self.library.config;
        let config = Config {
            home: current.home.clone(),
            network: current.network,
            runtime: current.runtime.clone(),
            threads: current.threads,
            providers: current.providers.clone(),
            place: current.place,
            npu: current.npu,
            npu_share: current.npu_share,
            npu_options: current.npu_options,
            max_models: current.max_models,
            weights_total: current.weights_total,
            load_wait: current.load_wait,
            retry_failed_after: current.retry_failed_after,
            prefix_cache: current.prefix_cache.clone(),
            ..config
        };
        let library = Arc::new(self.library.with_config(config));
        library.check_names()?;

        self.models.set_residence(|name| library.residence_of(name));
        if library.config.has_keep_alive() {
            self.models.unload_expired_in_background()?;
        }
        Ok(Self { library, ..self.clone() })
    }
}
