//! Settings of single models.

use std::{str::FromStr, sync::Arc, time::Duration};

use narthex_spec::{
    DeviceMap, DeviceOrder, KvCacheDtype, PlacementChoice, Scheme, manifest::PublishedSampling,
};
use narthex_text::template::{Message, Role};

use crate::upstream_settings::UpstreamRule;

/// Settings of one model, preferred over those of the [`Config`](crate::Config).
///
/// ```
/// use narthex_gateway::{AnswerSettings, Config, ModelSettings};
///
/// let answers = AnswerSettings { system: Some("You are a pirate.".to_owned()), ..AnswerSettings::default() };
/// let pirate = ModelSettings { from: Some("smollm2:135m".to_owned()), answers, ..ModelSettings::default() };
/// let config = Config { models: [("pirate".to_owned(), pirate)].into(), ..Config::standard() };
/// assert_eq!(config.models["pirate"].from.as_deref(), Some("smollm2:135m"));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelSettings {
    /// Model that answers requests for this name; `None` for the settings of the model itself. With it, `load`,
    /// `residence` and `upstream` have no effect.
    pub from: Option<String>,
    /// Loading of the model.
    pub load: LoadSettings,
    /// Answers of the model.
    pub answers: AnswerSettings,
    /// Time that the model stays in memory.
    pub residence: ResidenceSettings,
    /// Requests that an upstream answers in its place.
    pub upstream: Option<UpstreamRule>,
}

/// Settings for loading a model. An absent one is that of the [`Config`](crate::Config).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadSettings {
    /// Weight scheme, if the model is named without one.
    pub scheme: Option<Scheme>,
    /// Devices in order of preference.
    pub providers: Option<DeviceOrder>,
    /// Division of a decoder between two devices.
    pub place: Option<PlacementChoice>,
    /// Devices that parts of the model must run on.
    pub device_map: Option<DeviceMap>,
    /// Maximum number of tokens of a conversation.
    pub context: Option<usize>,
    /// Maximum bytes of the KV cache.
    pub kv_budget: Option<usize>,
    /// Element type of the KV cache on the CPU.
    pub kv_cache_dtype: Option<KvCacheDtype>,
}

/// Settings of the requests for a model under one of its names.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestSettings {
    pub(crate) answers: Arc<AnswerSettings>,
    pub(crate) media_urls: MediaUrls,
    /// Devices that the request requires.
    pub(crate) device_map: Option<DeviceMap>,
}

/// Use of the media at addresses in conversations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum MediaUrls {
    /// They are refused.
    #[default]
    Refused,
    /// They are refused, because the network is not used.
    Offline,
    /// They are read.
    Read,
}

/// Settings of answers, for requests that state nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AnswerSettings {
    /// System prompt of conversations without one.
    pub system: Option<String>,
    /// Sampling, preferred over that of the model's publisher.
    pub sampling: PublishedSampling,
    /// Stop strings.
    pub stop: Vec<String>,
}

impl AnswerSettings {
    /// Adds the stop strings to those of a request that states none.
    pub(crate) fn add_stop(&self, stop: &mut Vec<String>) {
        if stop.is_empty() {
            stop.clone_from(&self.stop);
        }
    }

    /// Adds the system prompt to a conversation without one.
    pub(crate) fn add_system(&self, messages: &mut Vec<Message>) {
        let has_system =
            messages.iter().any(|message| matches!(message.role, Role::System | Role::Developer));
        if let Some(system) = self.system.as_ref().filter(|_| !has_system && !messages.is_empty()) {
            messages.insert(0, Message::new(Role::System, system.clone()));
        }
    }

    /// Returns the sampling of these settings; what they do not state is that of the publisher.
    pub(crate) fn sampling_with(&self, published: &PublishedSampling) -> PublishedSampling {
        let own = self.sampling;
        PublishedSampling {
            temperature: own.temperature.or(published.temperature),
            top_p: own.top_p.or(published.top_p),
            top_k: own.top_k.or(published.top_k),
            min_p: own.min_p.or(published.min_p),
            repetition_penalty: own.repetition_penalty.or(published.repetition_penalty),
        }
    }
}

/// Time that a model stays in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResidenceSettings {
    /// The model is not unloaded to make room for another.
    pub pinned: bool,
    /// Time after the last request; `None` for that of the [`Config`](crate::Config).
    pub keep_alive: Option<KeepAlive>,
}

/// Time after its last request that a model stays in memory, if no other needs its memory.
///
/// ```
/// use std::time::Duration;
///
/// use narthex_gateway::KeepAlive;
///
/// assert_eq!("5m".parse(), Ok(KeepAlive::For(Duration::from_secs(300))));
/// assert_eq!("forever".parse(), Ok(KeepAlive::Forever));
/// assert!("soon".parse::<KeepAlive>().is_err());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeepAlive {
    /// Without a limit.
    #[default]
    Forever,
    /// At most this time.
    For(Duration),
}

impl FromStr for KeepAlive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if matches!(text, "forever" | "-1") {
            return Ok(Self::Forever);
        }
        let units = [("h", 3600), ("m", 60), ("s", 1), ("", 1)];
        let seconds = units.iter().find_map(|(unit, seconds)| {
            text.strip_suffix(unit)?.parse::<u32>().ok().map(|count| u64::from(count) * seconds)
        });
        let seconds = seconds
            .ok_or_else(|| format!("expected forever, or a time as in 90s, 5m or 2h, found {text:?}"))?;
        Ok(Self::For(Duration::from_secs(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_without_instructions_gets_the_system_prompt() {
        let settings = AnswerSettings { system: Some("Be brief.".to_owned()), ..AnswerSettings::default() };
        let complete = |roles: &[Role]| {
            let mut messages: Vec<_> = roles.iter().map(|role| Message::new(*role, String::new())).collect();
            settings.add_system(&mut messages);
            messages.iter().map(|message| message.role).collect::<Vec<_>>()
        };
        assert_eq!(complete(&[Role::User]), [Role::System, Role::User]);
        assert_eq!(complete(&[Role::Developer, Role::User]), [Role::Developer, Role::User]);
        assert_eq!(complete(&[]), [], "the missing messages are refused later");
    }

    #[test]
    fn sampling_that_the_settings_do_not_state_is_the_publishers() {
        let published = PublishedSampling { top_k: Some(40), temperature: Some(1.0), ..Default::default() };
        let sampling = PublishedSampling { temperature: Some(0.5), ..Default::default() };
        let merged = AnswerSettings { sampling, ..AnswerSettings::default() }.sampling_with(&published);
        assert_eq!((merged.temperature, merged.top_k), (Some(0.5), Some(40)));
    }
}
