//! Which slot holds what, and what that costs.

mod slots;

pub use slots::{PromptEnd, SlotState, Slots};
