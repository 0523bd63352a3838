//! Models in memory, as requests use them.

use std::sync::{Arc, Weak};

use narthex_spec::{ModelName, Scheme};

use super::ResidentModels;
use crate::{
    encoder_queue::ComputedTokens,
    error::Error,
    load::{loaded_model::LoadedModel, speech_detector::SpeechDetector},
    model_settings::RequestSettings,
    report::placement::AnsweringDevice,
};

/// A model in memory. It is not removed to make room for another model until this value and the generations that it
/// started have ended. Its requests have the same names as those of a [`Gateway`](crate::Gateway).
///
/// ```no_run
/// use narthex_gateway::{Cancel, Config, Gateway, LoadStart, request::EmbedRequest};
///
/// # fn main() -> Result<(), narthex_gateway::Error> {
/// let gateway = Gateway::open(Config::standard())?;
/// let cancel = Cancel::new();
/// let model = match gateway.start_load("all-minilm-l6-v2")? {
///     LoadStart::Ready(model) => model,
///     LoadStart::Pending(load) => load.wait_for_end(&cancel)?,
/// };
/// let embeddings = model.embed(&EmbedRequest::new(["a ferry at dawn"]), &cancel)?;
/// assert_eq!(Some(embeddings.vectors[0].len()), model.embedding_width());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ReadyModel {
    // Dropped before `_end`, which wakes the loads that wait for memory.
    pub(crate) loaded: Arc<LoadedModel>,
    pub(crate) computed: ComputedTokens,
    /// Settings of requests under this name.
    pub(crate) settings: RequestSettings,
    _end: UseEnd,
}

impl ReadyModel {
    pub(super) fn new(model: &Arc<LoadedModel>, models: &Arc<ResidentModels>) -> Self {
        Self {
            loaded: model.clone(),
            computed: ComputedTokens::default(),
            settings: RequestSettings::default(),
            _end: UseEnd(Arc::downgrade(models)),
        }
    }

    /// Returns the model with settings of its requests.
    ///
    /// # Errors
    /// [`Error::DeviceMap`] if the model runs on other devices than the settings require.
    pub(crate) fn with_settings(self, settings: RequestSettings) -> Result<Self, Error> {
        let place = self.loaded.place();
        match settings.device_map.as_ref().filter(|map| !map.is_satisfied_by(place)) {
            None => Ok(Self { settings, ..self }),
            Some(map) => Err(Error::DeviceMap {
                name: self.name().clone(),
                map: map.clone(),
                reason: format!("it is in memory and runs on {place}"),
                fix: format!(
                    "unload it with `narthex stop {}`; the next request loads it on the devices of its map",
                    self.name()
                ),
            }),
        }
    }

    /// Returns the model's name with its scheme, as in [`ModelStatus::id`](crate::models::ModelStatus::id).
    pub fn id(&self) -> String {
        format!("{}@{}", self.name(), self.scheme())
    }

    /// Returns the model's name.
    pub fn name(&self) -> &ModelName {
        &self.loaded.package.key.name
    }

    /// Returns the scheme of the model's weights.
    pub fn scheme(&self) -> Scheme {
        self.loaded.package.key.scheme
    }

    /// Returns the device that the model runs on.
    pub fn ran_on(&self) -> AnsweringDevice {
        self.loaded.ran_on()
    }

    /// Opens the detector of speech at the start of a sound, for a model that transcribes. It must be installed
    /// ([`Gateway::fetch_speech_detector`](crate::Gateway::fetch_speech_detector)).
    pub fn open_speech_detector(&self) -> Result<SpeechDetector, Error> {
        self.loaded.recognizer()?;
        self.loaded.detector.open()
    }

    /// Returns the number of tokens that an encoder has computed for the requests through this value and its clones,
    /// including cancelled ones.
    pub fn computed_tokens(&self) -> usize {
        self.computed.get()
    }
}

/// Wakes the loads that wait for memory when it is dropped.
#[derive(Clone)]
struct UseEnd(Weak<ResidentModels>);

impl Drop for UseEnd {
    fn drop(&mut self) {
        if let Some(models) = self.0.upgrade() {
            models.wake();
        }
    }
}
