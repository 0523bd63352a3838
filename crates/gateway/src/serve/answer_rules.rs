//! Rules for the text of the answers to a request.

use narthex_text::{grammar::GrammarMatcher, tools::ReasoningParser};

use crate::serve::tools::CallRules;

/// Rules for the text of the answers.
#[derive(Default)]
pub(super) struct AnswerRules {
    /// The grammar at its beginning.
    pub(super) grammar: Option<GrammarMatcher>,
    /// Rules of tool calls; `None` if the answers have none.
    pub(super) calls: Option<CallRules>,
    /// The parser of reasoning at its beginning; `None` if the model does not reason.
    pub(super) reasoning: Option<ReasoningParser>,
    /// Maximum number of tokens of reasoning.
    pub(super) reasoning_limit: Option<usize>,
}
