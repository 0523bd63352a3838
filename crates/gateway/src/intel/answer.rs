//! Answers of Intel's compiler.

use narthex_check::{CompilerResult, FaultyNodes, intel_errors};

/// CompilerOutcome of the compile of one graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CompilerOutcome {
    /// The blob is written.
    Compiled,
    /// The compiler refuses the graph, with a message.
    Refused(String),
    /// The compiler's process ended without an answer.
    #[cfg(unix)]
    Ended(narthex_check::ProcessEnd),
}

/// CompilerAnswer of the compiler for one graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompilerAnswer {
    pub(crate) outcome: CompilerOutcome,
    /// Beginning and end of the compiler's log.
    pub(crate) log: String,
}

impl CompilerAnswer {
    /// Returns the result in a check of a graph with `nodes` nodes.
    pub(crate) fn result(&self, nodes: usize) -> CompilerResult {
        let (fault, evidence) = (FaultyNodes::NotSearched, None);
        match &self.outcome {
            CompilerOutcome::Compiled => CompilerResult::Whole { nodes },
            CompilerOutcome::Refused(message) => {
                let message = intel_errors::describe(message, &self.log);
                CompilerResult::Failed { message, fault, evidence }
            }
            #[cfg(unix)]
            CompilerOutcome::Ended(how) => CompilerResult::Ended { how: how.clone(), fault, evidence },
        }
    }
}
