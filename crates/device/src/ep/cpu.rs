//! ONNX Runtime's own CPU kernels: always there, without options.

/// ONNX Runtime's name of the provider.
pub(super) const NAME: &str = "CPUExecutionProvider";
