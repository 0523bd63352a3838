//! Supervision of models on a device: the one layer between the engine, or an encoder's queue, and what runs a model.
//!
//! A supervised model takes its turns on a device that several models share, is opened again when its device is lost,
//! and is monitored for values that are not finite; an executor's panics become errors. Knows the ports, never sequences.

mod encoder;
mod executor;
mod monitor;
mod queue;
mod reopen;

pub use encoder::SupervisedEncoder;
pub use executor::SupervisedExecutor;
pub use monitor::NumericsMonitor;
pub use queue::{DeviceQueue, DeviceTurn};
