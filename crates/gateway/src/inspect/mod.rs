//! Reports that leave models unchanged: checks for NPUs, plans, devices, diagnostics and benchmarks.

pub mod bench;
pub mod check;
pub mod compare;
pub mod devices;
pub mod doctor;
pub mod plan;
