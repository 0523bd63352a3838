//! Tests of whole compiles. The test that counts allocations is a separate program in the parent folder.

#[path = "../support/mod.rs"]
mod support;

mod calibration;
mod dry_run;
mod families;
mod pipeline;
mod quark;
