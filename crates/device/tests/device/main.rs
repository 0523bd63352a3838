//! Tests of executors on the CPU, and of what needs no device. Those that load other libraries or change the process
//! are programs beside this folder.

#[path = "../support/mod.rs"]
mod support;

mod broken;
mod calibration;
mod device_loss;
mod encoder;
mod encoders;
mod executor;
mod exported;
mod families;
mod half_precision;
mod imported;
mod machines;
mod operators;
mod packed_weights;
mod split;
mod static_shapes;
