//! The table of devices, one constant per row. `DeviceName::spec` returns the rows.

use super::{DeviceKind, DeviceSpec, Ep, ProviderLibrary};
use crate::{Scheme, Variant};

pub(super) const QNN: DeviceSpec = DeviceSpec {
    name: "qnn",
    aliases: &["qnn:npu"],
    description: "the Hexagon NPU",
    kind: DeviceKind::Npu,
    ep: Ep::Qnn,
    ort_name: "QNNExecutionProvider",
    library: ProviderLibrary::Plugin,
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
    ort_name: "OpenVINOExecutionProvider",
    library: ProviderLibrary::Plugin,
    variant: Variant::Static,
    schemes: &Scheme::ALL,
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
    ort_name: "VitisAIExecutionProvider",
    library: ProviderLibrary::External,
    variant: Variant::Static,
    schemes: &Scheme::ALL,
};

pub(super) const CORE_ML: DeviceSpec = DeviceSpec {
    name: "coreml",
    aliases: &[],
    description: "the Apple Neural Engine",
    kind: DeviceKind::Npu,
    ep: Ep::CoreMl,
    ort_name: "CoreMLExecutionProvider",
    library: ProviderLibrary::External,
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
    ort_name: "DmlExecutionProvider",
    library: ProviderLibrary::OnnxRuntime,
    variant: Variant::Dynamic,
    schemes: &Scheme::ALL,
};

pub(super) const CUDA: DeviceSpec = DeviceSpec {
    name: "cuda",
    aliases: &[],
    description: "the NVIDIA GPU",
    kind: DeviceKind::Gpu,
    ep: Ep::Cuda,
    ort_name: "CUDAExecutionProvider",
    library: ProviderLibrary::OnnxRuntime,
    variant: Variant::Dynamic,
    schemes: &Scheme::ALL,
};

pub(super) const WEB_GPU: DeviceSpec = DeviceSpec {
    name: "webgpu",
    aliases: &[],
    description: "WebGPU",
    kind: DeviceKind::Gpu,
    ep: Ep::WebGpu,
    ort_name: "WebGpuExecutionProvider",
    library: ProviderLibrary::Plugin,
    variant: Variant::Dynamic,
    schemes: &Scheme::ALL,
};

pub(super) const CPU: DeviceSpec = DeviceSpec {
    name: "cpu",
    aliases: &[],
    description: "the CPU",
    kind: DeviceKind::Cpu,
    ep: Ep::Cpu,
    ort_name: "CPUExecutionProvider",
    library: ProviderLibrary::OnnxRuntime,
    variant: Variant::Dynamic,
    schemes: &Scheme::ALL,
};
