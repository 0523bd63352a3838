//! A checkpoint with a smaller head: rows of the head's weight for removed tokens are skipped when they are read. The
//! token embedding and all other weights stay unchanged.

use std::{ops::Range, path::Path};

use narthex_spec::{TokenId, arch::DecoderArch};

use crate::{
    error::Result,
    weight::{Weight, WeightSource},
};

/// Canonical name of the head's weight if it is not tied to the embedding.
const HEAD: &str = "head.weight";

/// Weights of a model that can generate only some tokens.
pub(super) struct PrunedWeights {
    whole: Box<dyn WeightSource>,
    /// Name of the head's weight in the checkpoint.
    head: &'static str,
    rows: Vec<Range<usize>>,
}

impl PrunedWeights {
    /// Restricts the head of `arch` to the tokens `kept`, in ascending order, and returns the weights of that model.
    pub(super) fn new(whole: Box<dyn WeightSource>, arch: &mut DecoderArch, kept: &[TokenId]) -> Self {
        let head = arch.head_weight();
        arch.kept_tokens = Some(kept.len());
        let rows = kept.iter().map(|&token| token as usize..token as usize + 1).collect();
        Self { whole, head, rows }
    }
}

impl WeightSource for PrunedWeights {
    fn weight(&self, name: &str) -> Result<Weight<'_>> {
        if name != HEAD {
            return self.whole.weight(name);
        }
        let mut weight = self.whole.weight(self.head)?;
        name.clone_into(&mut weight.name);
        weight.with_row_ranges(&self.rows)
    }

    fn has(&self, name: &str) -> bool {
        name == HEAD || self.whole.has(name)
    }

    fn file(&self, name: &str) -> Option<&Path> {
        self.whole.file(if name == HEAD { self.head } else { name })
    }

    fn called(&self, name: &str) -> String {
        self.whole.called(if name == HEAD { self.head } else { name })
    }
}
