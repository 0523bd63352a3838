//! ONNX Runtime's own CPU kernels, available on every machine, without options.

use super::Device;

/// Returns the CPU as a device.
pub(super) fn device() -> Device {
    Device::Cpu
}
