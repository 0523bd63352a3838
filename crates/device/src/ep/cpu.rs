//! ONNX Runtime's own CPU kernels: always there, without options.

use super::Device;

/// The device.
pub(super) fn device() -> Device {
    Device::Cpu
}
