//! The workspace as Cargo describes it, and output on the terminal. Every program of `cargo xtask` uses this crate, so
//! it has few dependencies.

pub mod terminal;
pub mod workspace;
