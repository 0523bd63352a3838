//! ONNX Runtime: the only crate with `ort`, dynamic libraries and FFI. Implements the engine's ports.
//!
//! Start at [`runtime::Runtime`], which loads the library once per process; [`dynamic`] runs decoders and [`encoder`]
//! runs encoders with it.

pub mod dynamic;
pub mod encoder;
mod error;
pub mod inventory;
pub mod memory;
mod ort;
mod package;
pub mod placement;
pub mod runtime;
mod table;

pub use error::DeviceError;
