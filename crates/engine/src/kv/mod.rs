//! Accounting of KV slots: their content, their memory, and the choice of a slot for a prompt. The memory itself belongs to
//! the executor.

mod prefix;
mod slots;

pub use prefix::{Reuse, SlotChoice};
pub use slots::{PromptEnd, SlotState, Slots};
