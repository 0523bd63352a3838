//! ONNX Runtime's own CPU kernels: always there, without options.

use super::Device;

/// ONNX Runtime's name of the provider.
pub(super) const NAME: &str = "CPUExecutionProvider";

/// The device.
pub(super) fn device() -> Device {
    Device::Cpu
}
