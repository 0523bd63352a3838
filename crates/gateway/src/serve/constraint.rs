//! Answers inside a grammar: the engine's port for constraints over the matcher of `narthex-text`.

use narthex_engine::constraint::{Allowed, Constraint, Progress};
use narthex_spec::TokenId;
use narthex_text::grammar::GrammarMatcher;

/// Keeps an answer inside a grammar.
pub(super) struct GrammarConstraint {
    matcher: GrammarMatcher,
}

impl GrammarConstraint {
    /// A constraint for one answer.
    pub(super) fn new(matcher: GrammarMatcher) -> Self {
        Self { matcher }
    }
}

impl Constraint for GrammarConstraint {
    fn prepare(&mut self) {
        self.matcher.prepare();
    }

    fn allowed(&self) -> Allowed<'_> {
        match self.matcher.failure() {
            Some(reason) => Allowed::Failed(reason),
            None => Allowed::Only(self.matcher.allowed()),
        }
    }

    fn accept(&mut self, token: TokenId) -> Progress {
        self.matcher.accept(token);
        if self.matcher.is_complete() { Progress::Complete } else { Progress::Open }
    }

    fn forced(&mut self, tokens: &mut Vec<TokenId>) {
        self.matcher.forced(tokens);
    }
}
