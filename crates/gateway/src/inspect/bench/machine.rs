//! Machine and versions of a figure.

use narthex_device::{inventory, runtime::Runtime};
use serde::Serialize;

/// Machine and versions of a figure.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Name of the processor.
    pub cpu: String,
    /// Number of logical cores.
    pub cores: usize,
    /// Number of threads.
    pub threads: usize,
    /// Operating system and architecture.
    pub platform: String,
    /// Name and version of the operating system, if it reports them.
    pub system: Option<String>,
    /// Bytes of memory, if the system reports them.
    pub memory_bytes: Option<u64>,
    /// GPUs and NPUs with loaded drivers.
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
            accelerators: inventory::measured().into_iter().map(|found| found.text).collect(),
            memory_bytes: inventory::memory_bytes(),
            narthex: env!("CARGO_PKG_VERSION").to_owned(),
            onnxruntime: runtime.version().to_owned(),
        }
    }
}
