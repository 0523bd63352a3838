//! Tool calls in answers, in the format of Hermes and Qwen: `<tool_call>`, an object with `name` and `arguments`,
//! `</tool_call>`.
//!
//! Templates that know this format get the tools and the calls as they are. For other models `prompt` writes them as text.
//! `grammar` guarantees calls, and `parser` finds them in the text of an answer.

mod grammar;
mod parser;
mod prompt;

pub(super) use grammar::answer_grammar;
pub(super) use parser::{CallParser, Piece};
pub(super) use prompt::{as_text, check, declarations};

/// Beginning of a call.
const OPEN: &str = "<tool_call>";

/// End of a call.
const CLOSE: &str = "</tool_call>";
