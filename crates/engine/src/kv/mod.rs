//! Accounting of KV slots: their content, their memory, and the choice of a slot for a prompt. The memory itself
//! belongs to the executor.

mod prefix;
mod slots;

pub(crate) use prefix::{MIN_COPY, common_prefix};
pub use prefix::{Prefix, Reuse, SlotChoice, SlotContent};
pub use slots::{PromptEnd, SlotState, Slots};
