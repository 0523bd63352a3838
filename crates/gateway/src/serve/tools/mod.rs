//! Tools of a request: their prompt, the grammar that guarantees calls, and the calls in an answer.
//!
//! `narthex-text` has the formats, their parsers and their writers. Templates with support for tools receive the tools
//! and the calls unchanged. For other models, `prompt` writes them as text. `grammar` guarantees that calls are valid,
//! and `calls` finds them in the text of an answer.

mod calls;
mod grammar;
mod prompt;

pub(super) use calls::{AnswerCalls, CallRules, Piece, special_tokens};
pub(super) use grammar::{answer_grammar, enforced_schema, guarantees_calls, with_open_schemas};
pub(super) use prompt::{check, conversation, declarations};
