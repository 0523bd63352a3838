//! ONNX Runtime. This is the only crate with `ort`, dynamic libraries and FFI. It implements the engine's ports.
//!
//! Start at [`runtime::Runtime`], which loads the library once per process; [`dynamic`], [`encoder`], [`speech`], [`vision`]
//! and [`audio`] run the dynamic variant, [`static_shapes`] runs the static variant, [`cpu_graph`] runs voices,
//! [`split`] joins two executors, and [`ep`] holds each provider's options.

pub mod audio;
mod convolution_rows;
pub mod cpu_graph;
pub mod dynamic;
pub mod encoder;
pub mod energy;
pub mod ep;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod inventory;
pub mod memory;
#[cfg(windows)]
pub mod openvino_compiler;
mod operators;
mod ort;
mod package;
pub mod packed_weights;
pub mod placement;
pub mod precompile;
mod registry;
mod rope_switch;
pub mod runtime;
pub mod single_run;
pub mod speech;
pub mod split;
mod states;
pub mod static_shapes;
mod table;
pub mod tower;
mod trace;
pub mod vision;
mod vocab_subset;

pub use error::{DeviceError, RefusedNode};
pub use states::bytes_per_slot;
