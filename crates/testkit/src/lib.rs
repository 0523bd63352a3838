//! What tests of several crates share: tiny seeded models and stand-ins.
//!
//! Nothing here is part of the product; no crate depends on it outside its tests.

pub mod architecture;
pub mod checkpoint;
pub mod encoder;
pub mod executor;
pub mod sink;
