//! Compiler from checkpoints to packages. It uses neither ONNX Runtime nor the network.
//!
//! Start at [`pipeline`] for the stages, at `lower` for the graphs, and at [`import`], [`voice`] and [`transcriber`] for graphs
//! of other tools.

pub mod calibration;
pub mod calibration_text;
mod channel_scaling;
pub mod dry_run;
mod emit;
mod error;
pub mod export;
pub mod import;
mod imported_graph;
mod layer;
mod lower;
pub mod package;
pub mod pass;
pub mod pipeline;
pub mod quant;
mod rotary;
pub mod transcriber;
pub mod vocab_subset;
pub mod voice;
mod weight_rounding;
pub mod width_plan;

pub use error::{CompileError, Result};
