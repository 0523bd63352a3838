//! Sessions and raw bindings over memory of our own. Nothing here knows of models.

mod aside;
mod binding;
mod ending;
mod resident;
mod session;

pub(crate) use binding::{Binding, Tensor};
pub(crate) use resident::{DeviceMemory, DeviceTensor};
pub(crate) use session::{Context, Session, SessionOptions, Sharing, Writes};
