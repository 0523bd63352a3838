//! Which slot holds what, what that costs, and which one a prompt is best run in.
//!
//! Keeps the books only; the memory itself is the executor's.

mod prefix;
mod slots;

pub use prefix::{Choice, Reuse};
pub use slots::{PromptEnd, SlotState, Slots};
