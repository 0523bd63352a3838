//! Forecast of a load, without a load.

use super::{ModelMemory, Residence, ResidentModels, evictable};
use crate::{
    library::package_key::PackageKey,
    report::load_forecast::{LoadForecast, LoadRoom},
};

impl ResidentModels {
    /// Returns what a load of the model would do now.
    pub(crate) fn forecast(&self, key: &PackageKey, memory: ModelMemory) -> LoadForecast {
        let free_bytes = (self.limits.free_memory)();
        let mut forecast = LoadForecast {
            name: key.name.clone(),
            scheme: key.scheme,
            package_bytes: memory.package_bytes,
            free_bytes,
            unloads: Vec::new(),
            room: LoadRoom::Loaded,
        };

        let residences = self.models.lock();
        if matches!(residences.get(key), Some(Residence::Ready { model, .. }) if !model.is_broken()) {
            return forecast;
        }
        let mut idle: Vec<_> = evictable(&residences).collect();
        idle.sort();
        let mut idle = idle.into_iter().map(|(_, key)| key);
        let mut reserved = self.reserved.lock().clone();
        let mut free = free_bytes;

        forecast.room = loop {
            let is_short = free.is_some_and(|free| free < memory.package_bytes);
            let has_room = reserved.has_room(memory, &self.limits);
            if has_room && !is_short {
                break LoadRoom::Enough;
            }
            match idle.next() {
                Some(evicted) => {
                    let freed = reserved.remove(evicted);
                    free = free.map(|free| free.saturating_add(freed));
                    forecast.unloads.push(evicted.name.clone());
                }
                None => break if has_room { LoadRoom::Short } else { LoadRoom::Full },
            }
        };
        forecast
    }
}
