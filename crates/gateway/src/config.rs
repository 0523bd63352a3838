//! Settings of a gateway.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use narthex_catalog::network::Network;
use narthex_spec::{
    DeviceOrder, KvCacheDtype, NpuOptions, NpuPolicy, PlacementChoice, Power, Scheme, Speculation, ToolFormat,
};

/// Default minimum share of a model's work on the NPU when one is required.
pub(crate) const NPU_SHARE: f64 = 0.99;

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
    /// Weight scheme of models that are named without one; `None` for `w8`, else any installed scheme.
    pub scheme: Option<Scheme>,
    /// Additional names of models in requests, such as `gpt-4o`, each with the name of a model.
    pub aliases: BTreeMap<String, String>,
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
    /// Maximum bytes of the KV cache of each chat model.
    pub kv_budget: usize,
    /// Maximum bytes of the KV caches of all chat models together. Each one reserves its own maximum.
    pub kv_total: usize,
    /// Element type of the KV cache on the CPU.
    pub kv_cache_dtype: KvCacheDtype,
    /// Maximum number of models in memory.
    pub max_models: usize,
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

impl Config {
    /// Returns the settings of `narthex serve` without flags.
    pub fn standard() -> Self {
        Self {
            home: None,
            network: Network::Allowed,
            runtime: None,
            scheme: None,
            aliases: BTreeMap::new(),
            default_model: None,
            tool_format: None,
            tool_formats: BTreeMap::new(),
            providers: DeviceOrder::auto(),
            place: None,
            npu: NpuPolicy::Prefer,
            npu_share: NPU_SHARE,
            power: Power::Burst,
            npu_options: NpuOptions::default(),
            threads: 0,
            slots: 8,
            kv_budget: 2 << 30,
            kv_total: 8 << 30,
            kv_cache_dtype: KvCacheDtype::Auto,
            max_models: 8,
            max_queue: 64,
            token_latency: Some(Duration::from_millis(200)),
            speculation: Speculation::Auto,
            draft_model: None,
            prefix_cache: None,
            load_wait: Duration::from_secs(45),
            retry_failed_after: Duration::from_secs(10),
            auto_pull_limit: 1 << 30,
        }
    }
}
