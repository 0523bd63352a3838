//! Sessions, and raw bindings to the caller's memory. This module is independent of models.

mod binding;
mod context;
mod device_memory;
mod device_padding;
mod process_exit;
mod redirect_stdout;
mod session;
mod value;

pub(crate) use binding::Binding;
pub(crate) use context::{Context, SharedWeights};
pub(crate) use device_memory::{DeviceMemory, DeviceTensor};
pub(crate) use device_padding::DevicePadding;
pub use session::{CpuOperators, OutputTensor};
pub(crate) use session::{Diagnostics, Session, SessionOptions};
pub(crate) use value::Tensor;
