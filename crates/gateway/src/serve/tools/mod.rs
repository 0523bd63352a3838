//! Tools of a request: their prompt, the grammar that guarantees calls, and the calls in an answer.
//!
//! `narthex-text` has the formats and their parsers. Templates that know tools get the tools and the calls as they are.
//! For other models `prompt` writes them as text. `grammar` guarantees calls, and `calls` finds them in the text of an
//! answer.

mod calls;
mod grammar;
mod prompt;

pub(super) use calls::{AnswerCalls, CallRules, Piece, TextEnd};
pub(super) use grammar::answer_grammar;
pub(super) use prompt::{check, conversation, declarations};
