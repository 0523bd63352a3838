//! Dense code in one file: closures bound by `let`, tuples that are built to be taken apart, and long functions without a
//! blank line. `density` limits them in each crate.

use syn::{Block, Expr, Local, Pat, Signature};

/// Maximum number of lines of a function without a blank line.
const PACKED_LINES: usize = 25;

/// Lines of dense code in one file, without tests.
#[derive(Debug, Default)]
pub(crate) struct DenseCode {
    /// Number of lines that are neither blank nor comments.
    pub(crate) code: usize,
    /// Lines that bind a closure by `let`.
    pub(crate) closures: Vec<usize>,
    /// Lines that build a tuple and take it apart.
    pub(crate) tuples: Vec<usize>,
    /// First lines of long functions without a blank line.
    pub(crate) packed: Vec<usize>,
}

impl DenseCode {
    /// Records a `let`.
    pub(crate) fn local(&mut self, local: &Local) {
        let Some(init) = &local.init else { return };
        let line = local.let_token.span.start().line;
        let pattern = match &local.pat {
            Pat::Type(typed) => &*typed.pat,
            pattern => pattern,
        };
        match (pattern, &*init.expr) {
            (Pat::Ident(_), Expr::Closure(_)) => self.closures.push(line),
            (Pat::Tuple(_), Expr::Tuple(_)) => self.tuples.push(line),
            _ => {}
        }
    }

    /// Records a function if it is long and has no blank line.
    pub(crate) fn function(&mut self, signature: &Signature, block: &Block, text: &[&str]) {
        let first = signature.fn_token.span.start().line;
        let last = block.brace_token.span.close().start().line;
        let lines = text.get(first..last).unwrap_or_default();
        if last - first > PACKED_LINES && !lines.iter().any(|line| line.trim().is_empty()) {
            self.packed.push(first);
        }
    }
}
