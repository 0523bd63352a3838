//! The tables of providers and of devices. `DeviceName::spec` returns the rows of devices, one constant each, and `Ep`
//! has a method for each column of the providers.

use super::{DeviceKind, DeviceSpec, Ep, ProviderLibrary};
use crate::{Scheme, Variant};

/// One row of the table of providers.
pub(super) struct ProviderSpec {
    /// ONNX Runtime's name of the provider.
    pub(super) ort_name: &'static str,
    /// Library of the provider.
    pub(super) library: ProviderLibrary,
}

/// Returns the row of a provider.
pub(super) const fn provider(ep: Ep) -> ProviderSpec {
    use ProviderLibrary::{External, OnnxRuntime, Plugin};
    let (ort_name, library) = match ep {
        Ep::Qnn => ("QNNExecutionProvider", Plugin),
        Ep::OpenVino => ("OpenVINOExecutionProvider", Plugin),
        Ep::VitisAi => ("VitisAIExecutionProvider", External),
        Ep::CoreMl => ("CoreMLExecutionProvider", External),
        Ep::DirectMl => ("DmlExecutionProvider", OnnxRuntime),
        Ep::Cuda => ("CUDAExecutionProvider", OnnxRuntime),
        Ep::WebGpu => ("WebGpuExecutionProvider", Plugin),
        Ep::Cpu => ("CPUExecutionProvider", OnnxRuntime),
    };
    ProviderSpec { ort_name, library }
}

pub(super) const QNN: DeviceSpec = DeviceSpec {
    name: "qnn",
    aliases: &["qnn:npu"],
    description: "the Hexagon NPU",
    kind: DeviceKind::Npu,
    ep: Ep::Qnn,
    variant: Variant::Static,
    schemes: &Scheme::ALL,
};

pub(super) const QNN_EMULATION: DeviceSpec = DeviceSpec {
    name: "qnn:emulation",
    aliases: &[],
    description: "HTP emulation",
    kind: DeviceKind::StandIn,
    ..QNN
};

pub(super) const OPENVINO_NPU: DeviceSpec = DeviceSpec {
    name: "openvino",
    aliases: &["openvino:npu"],
    description: "the Intel NPU",
    kind: DeviceKind::Npu,
    ep: Ep::OpenVino,
    variant: Variant::Static,
    schemes: &Scheme::OF_WEIGHTS,
};

pub(super) const OPENVINO_GPU: DeviceSpec = DeviceSpec {
    name: "openvino:gpu",
    aliases: &[],
    description: "the Intel GPU",
    kind: DeviceKind::Gpu,
    ..OPENVINO_NPU
};

pub(super) const OPENVINO_CPU: DeviceSpec = DeviceSpec {
    name: "openvino:cpu",
    aliases: &[],
    description: "OpenVINO's CPU device",
    kind: DeviceKind::StandIn,
    ..OPENVINO_NPU
};

pub(super) const VITIS_AI: DeviceSpec = DeviceSpec {
    name: "vitisai",
    aliases: &[],
    description: "the AMD XDNA NPU",
    kind: DeviceKind::Npu,
    ep: Ep::VitisAi,
    variant: Variant::Static,
    schemes: &Scheme::OF_WEIGHTS,
};

pub(super) const CORE_ML: DeviceSpec = DeviceSpec {
    name: "coreml",
    aliases: &[],
    description: "the Apple Neural Engine",
    kind: DeviceKind::Npu,
    ep: Ep::CoreMl,
    variant: Variant::Static,
    // CoreML has no operator for weights in blocks (`MatMulNBits`).
    schemes: &[Scheme::F16, Scheme::F32],
};

pub(super) const DIRECT_ML: DeviceSpec = DeviceSpec {
    name: "directml",
    aliases: &["dml"],
    description: "DirectML",
    kind: DeviceKind::Gpu,
    ep: Ep::DirectMl,
    variant: Variant::Dynamic,
    schemes: &Scheme::ALL,
};

pub(super) const CUDA: DeviceSpec = DeviceSpec {
    name: "cuda",
    aliases: &[],
    description: "the NVIDIA GPU",
    kind: DeviceKind::Gpu,
    ep: Ep::Cuda,
    variant: Variant::Dynamic,
    schemes: &Scheme::ALL,
};

pub(super) const WEB_GPU: DeviceSpec = DeviceSpec {
    name: "webgpu",
    aliases: &[],
    description: "WebGPU",
    kind: DeviceKind::Gpu,
    ep: Ep::WebGpu,
    variant: Variant::Dynamic,
    schemes: &Scheme::ALL,
};

pub(super) const CPU: DeviceSpec = DeviceSpec {
    name: "cpu",
    aliases: &[],
    description: "the CPU",
    kind: DeviceKind::Cpu,
    ep: Ep::Cpu,
    variant: Variant::Dynamic,
    schemes: &Scheme::ALL,
};
