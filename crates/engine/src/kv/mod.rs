//! Accounting of KV slots: their content, their memory, and the choice of a slot for a prompt. The memory itself
//! belongs to the executor. [`PrefixTree`] has keys and values of sequences that have lost their slots.

mod prefix;
mod slots;
mod tree;

pub(crate) use prefix::{MIN_COPY, common_prefix};
pub use prefix::{Prefix, Reuse, SlotChoice, SlotContent};
pub use slots::{PromptEnd, SlotState, Slots};
pub(crate) use tree::PIECE_TOKENS;
pub use tree::PrefixTree;
