//! What the gateway is told once, when it is opened.

use std::{path::PathBuf, time::Duration};

use narthex_spec::{DeviceOrder, NpuOptions, NpuPolicy, PlacementChoice, Power, Scheme};

/// The usual share of a model's work that an NPU must do where one is required.
pub(crate) const NPU_SHARE: f64 = 0.99;

/// Settings of a [`Gateway`](crate::Gateway).
#[derive(Debug, Clone)]
pub struct Config {
    /// The store's folder; `None` is `NARTHEX_HOME`, else the platform's data folder.
    pub home: Option<PathBuf>,
    /// ONNX Runtime's library; `None` is what `ORT_DYLIB_PATH` names, else the store's, installed on first need.
    pub runtime: Option<PathBuf>,
    /// The weight scheme of models that are named without one; `None` takes `w8`, or whichever is installed.
    pub scheme: Option<Scheme>,
    /// The devices that a load tries, in turn.
    pub providers: DeviceOrder,
    /// How a decoder is divided between two devices, or that measurements decide; tried before the order.
    pub place: Option<PlacementChoice>,
    /// What a load does about an NPU.
    pub npu: NpuPolicy,
    /// The share of a model's multiply-accumulates that must run on the NPU where one is required, 0 to 1. With less
    /// than the usual, the CPU may run the rest; else its graphs run whole, but for conversions at their edges.
    pub npu_share: f64,
    /// What devices other than the CPU give for their speed.
    pub power: Power,
    /// What a Hexagon NPU is told besides; other NPUs refuse it.
    pub npu_options: NpuOptions,
    /// Threads for compute; 0 takes one per core that this process may use.
    pub threads: usize,
    /// Sequences that may run at once, per chat model.
    pub slots: usize,
    /// Bytes that the KV cache of one chat model may take.
    pub kv_budget: usize,
    /// Requests that may wait, per model, before further ones are refused.
    pub max_queue: usize,
    /// How long a request waits for its model to load.
    pub load_wait: Duration,
    /// How long a load that failed is reported to requests before one of them tries again.
    pub retry_failed_after: Duration,
    /// The largest download that a request may set off by itself, in bytes; larger models must be pulled first.
    pub auto_pull_limit: u64,
}

impl Config {
    /// The settings of `narthex serve` without flags.
    pub fn standard() -> Self {
        Self {
            home: None,
            runtime: None,
            scheme: None,
            providers: DeviceOrder::auto(),
            place: None,
            npu: NpuPolicy::Prefer,
            npu_share: NPU_SHARE,
            power: Power::Burst,
            npu_options: NpuOptions::default(),
            threads: 0,
            slots: 8,
            kv_budget: 2 << 30,
            max_queue: 64,
            load_wait: Duration::from_secs(45),
            retry_failed_after: Duration::from_secs(10),
            auto_pull_limit: 1 << 30,
        }
    }
}
