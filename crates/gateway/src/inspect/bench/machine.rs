//! The machine and the versions that a figure belongs to.

use narthex_device::{inventory, runtime::Runtime};
use serde::Serialize;

/// Where a figure was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Its logical cores.
    pub cores: usize,
    /// Threads that computed.
    pub threads: usize,
    /// Kind of operating system, and architecture.
    pub platform: String,
    /// The operating system's name and version, where it tells.
    pub system: Option<String>,
    /// Bytes of memory, where the system tells.
    pub memory_bytes: Option<u64>,
    /// GPUs and NPUs whose drivers are loaded.
    pub accelerators: Vec<String>,
    /// Version of Narthex.
    pub narthex: String,
    /// Version of ONNX Runtime.
    pub onnxruntime: String,
}

impl Machine {
    pub(crate) fn here(runtime: &Runtime, threads: usize) -> Self {
        let cpu = inventory::cpu();
        Self {
            threads: inventory::threads(threads),
            cores: cpu.cores,
            cpu: cpu.name,
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            system: inventory::system(),
            accelerators: inventory::accelerators().into_iter().map(|found| found.text).collect(),
            memory_bytes: inventory::memory_bytes(),
            narthex: env!("CARGO_PKG_VERSION").to_owned(),
            onnxruntime: runtime.version().to_owned(),
        }
    }
}
