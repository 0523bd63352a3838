//! Tests of whole compiles. The test of their memory is a program beside this folder, because it counts allocations.

#[path = "../support/mod.rs"]
mod support;

mod calibration;
mod dry_run;
mod families;
mod pipeline;
mod quark;
