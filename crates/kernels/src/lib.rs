//! CPU kernels: pure functions on slices, each with one generic implementation for all instruction sets.
//!
//! Start at [`Kernels`]. Weights are packed into a [`PackedMatrix`] once; activations are rounded into
//! [`QuantizedRows`] at run time. [`Kernels::matmul`] multiplies a range of columns, so that callers can divide a
//! product between threads. No kernel starts a thread. None allocates memory once its buffers are large enough, except
//! for the parts of attention.
//!
//! Every instruction set gives the same bits as the portable code. `unsafe` code occurs only in the modules of
//! instruction sets under `simd` and in `view`.

#![warn(clippy::undocumented_unsafe_blocks)]
#![allow(
    clippy::needless_range_loop,
    reason = "register tiles are indexed by row and column, which reads better"
)]

mod activation;
mod activations;
mod aligned;
pub mod arm;
mod attention;
mod elementwise;
mod error;
mod float;
mod formats;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod kernels;
mod layer_norm;
mod math;
mod matmul;
mod measure;
mod packed;
#[cfg(feature = "bench")]
mod roofline;
mod rounding;
mod simd;
mod tile_matmul;
mod tiling;
#[allow(unsafe_code, reason = "disjoint columns of one slice cannot be borrowed without it")]
mod view;

pub use activation::Activation;
pub use activations::{Granularity, QuantizedRows};
pub use attention::{Attention, AttentionPart, CacheRows, KeyValues, Mask, Queries};
pub use elementwise::{GateClamp, ResidualSum};
pub use error::KernelError;
pub use float::{FloatMatrix, FloatRows, FloatWeights};
pub use kernels::Kernels;
pub use layer_norm::LayerNorm;
pub use matmul::Scratch;
pub use packed::{Bits, BlockedWeights, PackedMatrix, Scales, SharedBytes, WeightFormat};
pub use view::{MatrixMut, MatrixRef};
