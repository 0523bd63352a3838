//! Settings of a gateway.

use std::{collections::BTreeMap, ops::RangeInclusive, path::PathBuf, time::Duration};

use crate::{
    model_settings::{KeepAlive, LoadSettings, MediaUrls, ModelSettings},
    upstream_settings::{UpstreamRoute, UpstreamSettings},
};
use narthex_catalog::network::Network;
use narthex_device::inventory;
use narthex_spec::{
    DeviceMap, DeviceOrder, KvCacheDtype, NpuOptions, NpuPolicy, PlacementChoice, Power, Scheme, Speculation,
    ToolFormat,
};

/// Default minimum share of a model's work on the NPU when one is required.
pub(crate) const NPU_SHARE: f64 = 0.99;

/// Bytes of memory reserved for the system, the program and activations.
pub(crate) const RESERVED: u64 = 1 << 30;

/// Growth of the KV cache, in tokens.
pub(crate) const KV_STEP: usize = 256;

/// Settings of a [`Gateway`](crate::Gateway).
///
/// ```
/// use std::time::Duration;
///
/// use narthex_gateway::Config;
///
/// let config = Config {
///     providers: "qnn,cpu".parse().unwrap(),
///     load_wait: Duration::from_secs(120),
///     ..Config::standard()
/// };
/// assert_eq!(config.slots, 8);
/// ```
#[derive(Debug, Clone)]
pub struct Config {
    /// Folder of the store; `None` for `NARTHEX_HOME`, else the platform's data folder.
    pub home: Option<PathBuf>,
    /// Use of the network. `NARTHEX_OFFLINE` and `HF_HUB_OFFLINE` forbid it too.
    pub network: Network,
    /// Library of ONNX Runtime; `None` for `ORT_DYLIB_PATH`, else the store's, which is installed on first need.
    pub runtime: Option<PathBuf>,
    /// Program of espeak-ng, which pronounces the texts of some voices; `None` for `NARTHEX_ESPEAK`, else `espeak-ng`.
    pub espeak: Option<PathBuf>,
    /// Weight scheme of models that are named without one; `None` for `w8`, else any installed scheme.
    pub scheme: Option<Scheme>,
    /// Additional names of models in requests, such as `gpt-4o`, each with the name of a model.
    pub aliases: BTreeMap<String, String>,
    /// Settings of single models, by the name of the model or a name of their own.
    pub models: BTreeMap<String, ModelSettings>,
    /// Other servers that answer requests for models, by name. They only apply to servers.
    pub upstreams: BTreeMap<String, UpstreamSettings>,
    /// Model of requests that name an unknown one; `None` to refuse them.
    pub default_model: Option<String>,
    /// Format of tool calls in place of that of the package; `None` for the package's.
    pub tool_format: Option<ToolFormat>,
    /// Formats of tool calls of single models by name, preferred over `tool_format`.
    pub tool_formats: BTreeMap<String, ToolFormat>,
    /// Devices in order of preference.
    pub providers: DeviceOrder,
    /// Division of a decoder between two devices, fixed or measured; preferred over the order.
    pub place: Option<PlacementChoice>,
    /// Devices that parts of a model must run on, instead of the order and of `place`. A load that cannot place a part there
    /// fails.
    pub device_map: Option<DeviceMap>,
    /// NPU policy.
    pub npu: NpuPolicy,
    /// Minimum share of a model's multiply-accumulates on the NPU when one is required, 0 to 1. With a share below the
    /// default, the CPU may run the rest; otherwise graphs run completely on the NPU, except for conversions at their
    /// edges.
    pub npu_share: f64,
    /// Power preset of devices other than the CPU.
    pub power: Power,
    /// Options of a Hexagon NPU. Other NPUs refuse them.
    pub npu_options: NpuOptions,
    /// Number of CPU threads; 0 for one per usable core.
    pub threads: usize,
    /// Maximum number of concurrent sequences of each chat model.
    pub slots: usize,
    /// Maximum bytes of the KV cache of each chat model; `None` for a quarter of the free memory, from 512 MiB to
    /// 16 GiB.
    pub kv_budget: Option<usize>,
    /// Maximum bytes of the KV caches of all chat models together. Each one reserves its own maximum. `None` for twice
    /// the default of `kv_budget`, at least 2 GiB and at least `kv_budget`.
    pub kv_total: Option<usize>,
    /// Maximum number of tokens of a conversation; `None` for the model's context, as far as the KV budget holds it.
    pub context: Option<usize>,
    /// Element type of the KV cache on the CPU.
    pub kv_cache_dtype: KvCacheDtype,
    /// Maximum number of models in memory.
    pub max_models: usize,
    /// Maximum bytes of the weights of several models in memory; one model alone may have more. `None` for the memory that
    /// this process may use, without 1 GiB.
    pub weights_total: Option<u64>,
    /// Time after its last request that a model stays in memory.
    pub keep_alive: KeepAlive,
    /// Maximum number of waiting requests of each model.
    pub max_queue: usize,
    /// Maximum time between two tokens of an answer while prompts are processed, which then run in smaller chunks.
    /// `None` for no maximum.
    pub token_latency: Option<Duration>,
    /// Verification of several tokens of an answer in one step.
    pub speculation: Speculation,
    /// Installed model that proposes the next tokens of all chat models, which must have its vocabulary. It has no
    /// effect without speculation.
    pub draft_model: Option<String>,
    /// Prefixes of prompts in files, from which chat models answer after a restart; `None` for none.
    pub prefix_cache: Option<PrefixCacheConfig>,
    /// Maximum time that a request waits for its model to load, and that a load waits for memory that models in use
    /// take.
    pub load_wait: Duration,
    /// Time during which requests receive the error of a failed load, before one of them loads again.
    pub retry_failed_after: Duration,
    /// Maximum bytes of a download that a request may start. Larger models must be pulled first.
    pub auto_pull_limit: u64,
    /// Read pictures at the addresses in conversations ([`request::RemoteMedia`](crate::request::RemoteMedia)), if they
    /// are public. Otherwise such conversations are refused.
    pub allow_media_urls: bool,
}

/// Settings of the prefix cache in files.
///
/// ```
/// use narthex_gateway::{Config, PrefixCacheConfig};
///
/// let bytes = PrefixCacheConfig::DEFAULT_BYTES;
/// let cache = PrefixCacheConfig { folder: "/var/cache/narthex".into(), bytes };
/// let config = Config { prefix_cache: Some(cache), ..Config::standard() };
/// assert!(config.prefix_cache.is_some());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixCacheConfig {
    /// Folder of the files. Several models and processes may share it.
    pub folder: PathBuf,
    /// Maximum bytes of all files.
    pub bytes: u64,
}

impl PrefixCacheConfig {
    /// Default maximum of all files in bytes.
    pub const DEFAULT_BYTES: u64 = 1 << 30;
}

/// Memory for the KV caches of chat models, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KvMemory {
    /// Maximum of each model.
    pub(crate) budget: usize,
    /// Maximum of all models together.
    pub(crate) total: usize,
}

impl KvMemory {
    /// Bounds of the default budget.
    const BUDGET: RangeInclusive<usize> = 512 << 20..=16 << 30;

    /// Minimum of the default total.
    const MIN_TOTAL: usize = 2 << 30;

    /// Defaults are multiples of this many bytes, so that small changes of the free memory do not change them.
    const STEP: usize = 64 << 20;

    /// Assumed free memory of a machine that reports none.
    const ASSUMED_FREE: usize = 8 << 30;

    /// Returns the memory that the settings state. What they do not state follows from the free memory.
    fn new(config: &Config, free: Option<u64>) -> Self {
        let free = free.map_or(Self::ASSUMED_FREE, |free| usize::try_from(free).unwrap_or(usize::MAX));
        let quarter = free / 4;
        let standard = (quarter - quarter % Self::STEP).clamp(*Self::BUDGET.start(), *Self::BUDGET.end());
        let standard_total = (2 * standard).max(Self::MIN_TOTAL);
        let total = config.kv_total.unwrap_or_else(|| standard_total.max(config.kv_budget.unwrap_or(0)));
        Self { budget: config.kv_budget.unwrap_or_else(|| standard.min(total)), total }
    }
}

impl Config {
    /// Returns the use of the media at addresses in conversations.
    pub(crate) fn media_urls(&self) -> MediaUrls {
        match (self.allow_media_urls, self.network) {
            (false, _) => MediaUrls::Refused,
            (true, Network::CacheOnly) => MediaUrls::Offline,
            (true, Network::Allowed) => MediaUrls::Read,
        }
    }

    /// Returns the model that an additional name denotes.
    pub(crate) fn alias(&self, name: &str) -> Option<&str> {
        let alias = self.aliases.get(name).map(String::as_str);
        alias.or_else(|| self.models.get(name)?.from.as_deref())
    }

    /// Returns the model of an upstream that a name in a request denotes; `None` for any other name.
    pub(crate) fn upstream_route(&self, name: &str) -> Option<UpstreamRoute> {
        let name = name.trim();
        let name = self.alias(name).unwrap_or(name);
        let route = |upstream: &str, model: &str| UpstreamRoute {
            upstream: upstream.to_owned(),
            name: name.to_owned(),
            model: model.to_owned(),
        };
        let mut listed = self.upstreams.iter();
        if let Some((upstream, model)) =
            listed.find_map(|(upstream, settings)| Some((upstream, settings.models.get(name)?)))
        {
            return Some(route(upstream, model));
        }
        let (upstream, model) = name.split_once('/').filter(|(_, model)| !model.is_empty())?;
        let settings = self.upstreams.get(upstream)?;
        Some(route(upstream, settings.models.get(model).map_or(model, String::as_str)))
    }

    /// Returns the settings with those for loading one model in their place.
    pub(crate) fn with_loading(&self, own: &LoadSettings) -> Self {
        Self {
            scheme: own.scheme.or(self.scheme),
            providers: own.providers.clone().unwrap_or_else(|| self.providers.clone()),
            place: own.place.or(self.place),
            device_map: own.device_map.clone().or_else(|| self.device_map.clone()),
            context: own.context.or(self.context),
            kv_budget: own.kv_budget.or(self.kv_budget),
            kv_cache_dtype: own.kv_cache_dtype.unwrap_or(self.kv_cache_dtype),
            ..self.clone()
        }
    }

    /// Returns whether a model may be unloaded because nothing used it for a while.
    pub(crate) fn has_keep_alive(&self) -> bool {
        self.keep_alive != KeepAlive::Forever
            || self.models.values().any(|model| model.residence.keep_alive.is_some())
    }

    /// Returns the additional names of models, each with the name of a model.
    pub(crate) fn all_aliases(&self) -> BTreeMap<String, String> {
        let of_models =
            self.models.iter().filter_map(|(name, settings)| Some((name.clone(), settings.from.clone()?)));
        of_models.chain(self.aliases.clone()).collect()
    }

    /// Returns the memory for KV caches. [`Self::with_kv_memory`] makes it independent of the free memory at the call.
    pub(crate) fn kv_memory(&self) -> KvMemory {
        match (self.kv_budget, self.kv_total) {
            (Some(budget), Some(total)) => KvMemory { budget, total },
            _ => KvMemory::new(self, inventory::available_memory().or_else(inventory::memory_bytes)),
        }
    }

    /// Returns the bytes for the weights of several models, if they are bounded.
    pub(crate) fn weights_total(&self) -> Option<u64> {
        self.weights_total.or_else(|| Some(inventory::memory_bytes()?.saturating_sub(RESERVED)))
    }

    /// States the memory for KV caches that follows from the free memory now.
    pub(crate) fn with_kv_memory(self) -> Self {
        let KvMemory { budget, total } = self.kv_memory();
        Self { kv_budget: Some(budget), kv_total: Some(total), ..self }
    }

    /// Returns the settings of `narthex serve` without flags.
    pub fn standard() -> Self {
        Self {
            home: None,
            network: Network::Allowed,
            runtime: None,
            espeak: None,
            scheme: None,
            aliases: BTreeMap::new(),
            models: BTreeMap::new(),
            upstreams: BTreeMap::new(),
            default_model: None,
            tool_format: None,
            tool_formats: BTreeMap::new(),
            providers: DeviceOrder::auto(),
            place: None,
            device_map: None,
            npu: NpuPolicy::Prefer,
            npu_share: NPU_SHARE,
            power: Power::Burst,
            npu_options: NpuOptions::default(),
            threads: 0,
            slots: 8,
            kv_budget: None,
            kv_total: None,
            context: None,
            kv_cache_dtype: KvCacheDtype::Auto,
            max_models: 8,
            weights_total: None,
            keep_alive: KeepAlive::Forever,
            max_queue: 64,
            token_latency: Some(Duration::from_millis(200)),
            speculation: Speculation::Auto,
            draft_model: None,
            prefix_cache: None,
            load_wait: Duration::from_secs(45),
            retry_failed_after: Duration::from_secs(10),
            auto_pull_limit: 1 << 30,
            allow_media_urls: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_settings_of_a_model_change_nothing() {
        let config = Config { context: Some(100), ..Config::standard() };
        let own = config.with_loading(&LoadSettings { kv_budget: Some(7), ..LoadSettings::default() });
        assert_eq!((own.context, own.kv_budget, own.scheme), (Some(100), Some(7), None));
    }

    #[test]
    fn the_memory_of_kv_caches_is_a_quarter_of_the_free_memory() {
        let memory = |kv_budget: Option<usize>, kv_total: Option<usize>, free_mib: Option<u64>| {
            let config = Config { kv_budget, kv_total, ..Config::standard() };
            let KvMemory { budget, total } = KvMemory::new(&config, free_mib.map(|mib| mib << 20));
            (budget >> 20, total >> 20)
        };
        assert_eq!(memory(None, None, Some(10_000)), (2496, 4992));
        assert_eq!(memory(None, None, Some(10_100)), (2496, 4992), "a small change of the free memory");
        assert_eq!(memory(None, None, Some(0)), (512, 2048));
        assert_eq!(memory(None, None, Some(1 << 20)), (16_384, 32_768));
        assert_eq!(memory(None, None, None), (2048, 4096));
        assert_eq!(memory(Some(10 << 30), None, Some(8192)), (10_240, 10_240));
        assert_eq!(memory(None, Some(8 << 20), Some(8192)), (8, 8));
        assert_eq!(memory(Some(1 << 20), Some(8 << 20), Some(8192)), (1, 8));
    }

    #[test]
    fn names_denote_models_of_upstreams() {
        let mut upstream = UpstreamSettings::new("http://box/v1".parse().unwrap());
        upstream.models =
            [("big", "llama3.1:70b"), ("gpt-4o", "gpt-4o")].map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        let config = Config {
            upstreams: [("box".to_owned(), upstream)].into(),
            aliases: [("large".to_owned(), "box/big".to_owned())].into(),
            ..Config::standard()
        };
        let check = |name: &str, expect: Option<(&str, &str)>| {
            let route = config.upstream_route(name);
            let found = route.as_ref().map(|route| (route.name.as_str(), route.model.as_str()));
            assert_eq!(found, expect, "{name}");
        };
        check("big", Some(("big", "llama3.1:70b")));
        check(" gpt-4o", Some(("gpt-4o", "gpt-4o")));
        check("box/meta/Llama@x", Some(("box/meta/Llama@x", "meta/Llama@x")));
        check("large", Some(("box/big", "llama3.1:70b")));
        for local in ["box", "box/", "other/big", "smollm2:135m"] {
            check(local, None);
        }
    }
}
