//! ONNX Runtime: the only crate with `ort`, dynamic libraries and FFI. Implements the engine's ports.
//!
//! Start at [`runtime::Runtime`], which loads the library once per process; [`dynamic`] and [`encoder`] run variant A,
//! [`fixed`] runs variant B, [`split`] joins two executors, and [`ep`] holds each provider's options.

pub mod dynamic;
pub mod encoder;
pub mod energy;
pub mod ep;
mod error;
pub mod fixed;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod inventory;
mod kept;
pub mod memory;
pub mod once;
mod ort;
mod package;
pub mod placement;
pub mod precompile;
mod registry;
pub mod runtime;
pub mod split;
mod switch;
mod table;
mod trace;

pub use error::{DeviceError, RefusedNode};
