//! Sessions, and raw bindings to the caller's memory. This module is independent of models.

mod binding;
mod device_memory;
mod process_exit;
mod redirect_stdout;
mod session;
mod value;

pub(crate) use binding::Binding;
pub(crate) use device_memory::{DeviceMemory, DeviceTensor};
pub use session::CpuOperators;
pub(crate) use session::{Context, Diagnostics, Session, SessionOptions, SharedWeights};
pub(crate) use value::Tensor;
