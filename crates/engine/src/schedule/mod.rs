//! What the next step runs: [`policy`] says how many tokens of whom, [`plan`] writes it down for the executor.
//!
//! Chooses among sequences that hold slots; who gets a slot is decided in [`core`](crate::core).

pub(crate) mod plan;
pub(crate) mod policy;
