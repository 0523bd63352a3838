//! The plan of the next step: [`policy`] divides tokens among the sequences, [`checkpoints`] ends spans where a state is
//! kept, [`media`] keeps media whole, [`plan`] fills the executor's plan.
//!
//! Only sequences with slots take part; [`engine_loop`](crate::engine_loop) assigns the slots.

pub(crate) mod checkpoints;
pub(crate) mod media;
pub(crate) mod pace;
pub(crate) mod plan;
pub(crate) mod policy;
