//! A checkpoint whose head has lost tokens: rows of its weight are passed over as they are read. The token table stays as it
//! is, and so does everything else.

use std::{ops::Range, path::Path};

use narthex_spec::{TokenId, arch::DecoderArch};

use super::{Result, Weight, WeightSource};

/// The head's weight, once it is its own.
const HEAD: &str = "head.weight";

/// The weights of a model that gives some tokens only.
pub(super) struct Pruned {
    whole: Box<dyn WeightSource>,
    /// Name of the head's weight in the checkpoint.
    head: &'static str,
    rows: Vec<Range<usize>>,
}

impl Pruned {
    /// The head of `arch` with these tokens, rising, alone.
    pub(super) fn new(whole: Box<dyn WeightSource>, arch: &mut DecoderArch, kept: &[TokenId]) -> Self {
        let head = arch.head_weight();
        arch.kept_tokens = Some(kept.len());
        let rows = kept.iter().map(|&token| token as usize..token as usize + 1).collect();
        Self { whole, head, rows }
    }
}

impl WeightSource for Pruned {
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
