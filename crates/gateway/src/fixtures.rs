//! Machines for tests.

use std::path::PathBuf;

use narthex_device::{
    ep::Facts,
    inventory::{Accelerator, AcceleratorKind},
};
use narthex_spec::Ep;

/// Returns the facts of a Linux laptop with a Snapdragon X Elite.
pub(crate) fn snapdragon<const N: usize>(libraries: [(Ep, PathBuf); N]) -> Facts {
    let npu = Accelerator {
        kind: AcceleratorKind::Npu,
        driver: "fastrpc".into(),
        text: "Hexagon".into(),
        memory: None,
    };
    Facts {
        os: "linux".into(),
        arch: "aarch64".into(),
        processor: "Snapdragon X Elite".into(),
        accelerators: vec![npu],
        libraries: libraries.into(),
        ..Facts::default()
    }
}
