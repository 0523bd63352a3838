//! Tests that run on the CPU or need no device. Tests that load another library or change the state of the process are
//! separate programs in the parent folder.

#[path = "../support/mod.rs"]
mod support;

mod broken;
mod calibration;
mod conformer;
mod device_loss;
mod embedders;
mod encoder;
mod encoders;
mod executor;
mod exported;
mod families;
mod half_precision;
mod imported;
mod machines;
mod mobilenet;
mod operators;
mod packed_weights;
mod recurrences;
mod scorers;
mod speech;
mod split;
mod states;
mod static_shapes;
mod vision;
