//! Sessions and raw bindings over memory of our own. Nothing here knows of models.

mod aside;
mod binding;
mod ending;
mod resident;
mod session;
mod value;

pub(crate) use binding::Binding;
pub(crate) use resident::{DeviceMemory, DeviceTensor};
pub(crate) use session::{Context, Session, SessionOptions, Sharing, Writes};
pub(crate) use value::Tensor;
