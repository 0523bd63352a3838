//! Tiny seeded models and fakes for the tests of several crates.
//!
//! Nothing here is part of the product; no crate depends on it outside its tests.

pub mod allocator;
pub mod architecture;
pub mod checkpoint;
pub mod damage;
pub mod encoder;
pub mod executor;
pub mod hub;
pub mod invariant;
pub mod memory;
pub mod one_thread;
pub mod sink;
pub mod sound;
