//! The port for a constraint on a sequence's tokens, such as a grammar, and the state of a constraint in a running
//! sequence.

use std::panic::{AssertUnwindSafe, catch_unwind};

use narthex_spec::TokenId;

/// Restricts the tokens of one sequence.
///
/// The engine calls [`Self::prepare`] during the model's step, samples one of the allowed tokens and accepts it. It
/// then accepts the forced tokens after it without running the model for each.
pub trait Constraint: Send {
    /// Computes the tokens that may come next. Called on another thread while the model's step runs.
    fn prepare(&mut self);

    /// Returns the tokens that may come next. [`Self::prepare`] has been called since the last accepted token.
    fn allowed(&self) -> AllowedTokens<'_>;

    /// Accepts the next token, which is an allowed or a forced one.
    fn accept(&mut self, token: TokenId) -> Progress;

    /// Appends the tokens that must come next, without accepting them.
    fn forced(&mut self, tokens: &mut Vec<TokenId>);
}

/// Tokens that a constraint allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedTokens<'a> {
    /// Every token.
    All,
    /// Tokens whose bit is set: token `t` is bit `t % 32` of word `t / 32`. Tokens beyond the last word are not
    /// allowed.
    Only(&'a [u32]),
    /// No tokens: the constraint failed with this reason.
    Failed(&'a str),
}

/// State of a constraint after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More tokens may follow.
    Open,
    /// No token can follow.
    Complete,
}

/// The constraint of a running sequence.
pub(crate) struct ActiveConstraint {
    constraint: Box<dyn Constraint>,
    /// True while `allowed` is valid.
    prepared: bool,
    panicked: bool,
}

impl ActiveConstraint {
    pub(crate) fn new(constraint: Box<dyn Constraint>) -> Self {
        Self { constraint, prepared: false, panicked: false }
    }

    /// Returns true if [`Self::prepare`] has work to do.
    pub(crate) fn is_stale(&self) -> bool {
        !self.prepared
    }

    /// Computes the allowed tokens, unless they are valid.
    pub(crate) fn prepare(&mut self) {
        if !self.prepared {
            self.guard(|constraint| constraint.prepare());
            self.prepared = true;
        }
    }

    /// Returns the allowed tokens; `None` for all.
    ///
    /// # Errors
    /// The reason, if the constraint failed.
    pub(crate) fn allowed(&mut self) -> Result<Option<&[u32]>, String> {
        self.prepare();
        if self.panicked {
            return Err("its code panicked; please report this".to_owned());
        }
        match self.constraint.allowed() {
            AllowedTokens::All => Ok(None),
            AllowedTokens::Only(words) => Ok(Some(words)),
            AllowedTokens::Failed(reason) => Err(reason.to_owned()),
        }
    }

    /// Accepts the next token.
    pub(crate) fn accept(&mut self, token: TokenId) -> Progress {
        self.prepared = false;
        self.guard(|constraint| constraint.accept(token)).unwrap_or(Progress::Open)
    }

    /// Replaces `tokens` by those that must come next.
    pub(crate) fn forced(&mut self, tokens: &mut Vec<TokenId>) {
        tokens.clear();
        self.guard(|constraint| constraint.forced(tokens));
    }

    /// Calls the constraint. After a panic, it is not called again.
    fn guard<T>(&mut self, call: impl FnOnce(&mut dyn Constraint) -> T) -> Option<T> {
        if self.panicked {
            return None;
        }
        let constraint = self.constraint.as_mut();
        let outcome = catch_unwind(AssertUnwindSafe(|| call(constraint)));
        self.panicked = outcome.is_err();
        outcome.ok()
    }
}
