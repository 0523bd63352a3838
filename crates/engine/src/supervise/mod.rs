//! Supervision of models on a device: the only layer between the engine, or an encoder's queue, and the code that runs
//! a model. The exception is a decoder whose phases run on two devices: the executor of both has this layer, which
//! reports panics and measures steps, and so has each of the two, for its own device.
//!
//! A supervised model takes turns on a device that several models share, is reopened when its device is lost, and is
//! monitored for values that are not finite. Panics of an executor become errors. The layer depends on the ports and is
//! independent of sequences.

mod encoder;
mod executor;
mod monitor;
mod queue;
mod reopen;
mod speech;

pub use encoder::SupervisedEncoder;
pub use executor::SupervisedExecutor;
pub use monitor::NumericsMonitor;
pub use queue::{DeviceQueue, DeviceTurn};
pub use speech::SupervisedSpeech;
