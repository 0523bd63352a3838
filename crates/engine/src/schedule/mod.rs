//! The plan of the next step: [`policy`] shares tokens among the sequences, [`plan`] writes the executor's plan.
//!
//! Only sequences with slots take part; slots are assigned in [`core`](crate::engine_loop).

pub(crate) mod plan;
pub(crate) mod policy;
