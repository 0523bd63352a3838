//! A token table and a head that are one matrix in two encodings, as converters write them for models that tie both.

use std::path::Path;

use narthex_spec::arch::{Architecture, DecoderArch};

use crate::{
    checkpoint::Checkpoint,
    error::Result,
    weight::{Weight, WeightSource},
};

/// Canonical names of the two.
const TABLE: &str = "embed.weight";
const HEAD: &str = "head.weight";

/// Number of rows that are compared.
const ROWS: usize = 64;

/// Maximum share of the squares of a row's elements that differences of the two encodings have. Four bits in blocks of 32
/// differ from the original by less than 1 %; two different matrices by about 200 %.
const MAX_DIFFERENCE: f32 = 0.05;

/// Weights of a model whose token table is the matrix of its head.
struct TiedWeights {
    whole: Box<dyn WeightSource>,
}

impl WeightSource for TiedWeights {
    fn weight(&self, name: &str) -> Result<Weight<'_>> {
        let mut weight = self.whole.weight(if name == TABLE { HEAD } else { name })?;
        name.clone_into(&mut weight.name);
        Ok(weight)
    }

    fn has(&self, name: &str) -> bool {
        name != HEAD && self.whole.has(name)
    }

    fn file(&self, name: &str) -> Option<&Path> {
        self.whole.file(if name == TABLE { HEAD } else { name })
    }

    fn called(&self, name: &str) -> String {
        self.whole.called(if name == TABLE { HEAD } else { name })
    }
}

impl Checkpoint {
    /// Returns this model with one matrix for the token table and the head, if both are the same matrix in two encodings.
    /// It is the one with more bits.
    ///
    /// # Errors
    /// The errors of reading the two.
    pub fn tied(mut self) -> Result<Self> {
        let Architecture::Decoder(arch) = &mut self.architecture else { return Ok(self) };
        if arch.tied_head || arch.kept_tokens.is_some() {
            return Ok(self);
        }
        let [table, head] = [self.weights.weight(TABLE)?, self.weights.weight(HEAD)?];
        if !is_same_matrix(arch, &table, &head) {
            return Ok(self);
        }
        let is_head_finer = head.encoding.bits() >= table.encoding.bits();
        arch.tied_head = true;
        if is_head_finer {
            drop((table, head));
            self.weights = Box::new(TiedWeights { whole: self.weights });
        }
        Ok(self)
    }
}

/// Compares some rows, evenly spaced.
fn is_same_matrix(arch: &DecoderArch, table: &Weight<'_>, head: &Weight<'_>) -> bool {
    let shape = [arch.vocab, arch.hidden];
    if table.shape != shape || head.shape != shape {
        return false;
    }
    let mut rows = [vec![0.0; arch.hidden], vec![0.0; arch.hidden]];
    let mut compared = 0;
    for row in (0..arch.vocab).step_by(arch.vocab.div_ceil(ROWS).max(1)) {
        let [of_table, of_head] = &mut rows;
        table.read_row(row, of_table);
        head.read_row(row, of_head);
        let power: f32 = of_table.iter().chain(&*of_head).map(|x| x * x).sum::<f32>() / 2.0;
        let difference: f32 = of_table.iter().zip(&*of_head).map(|(a, b)| (a - b).powi(2)).sum();
        // Rows of unused tokens may be zeros. The comparison is false for NaN.
        let is_same = difference <= MAX_DIFFERENCE * power;
        if !is_same {
            return false;
        }
        compared += usize::from(power > 0.0);
    }
    compared > 0
}

#[cfg(test)]
mod tests {
    use narthex_testkit::checkpoint::{Gguf, GgufTensor, GgufType, tiny_llama};

    use super::*;
    use crate::Encoding;

    /// Opens the tiny Llama with a head that `change` makes of the values of the token table.
    fn open(kind: GgufType, change: impl Fn(usize, f32) -> f32) -> Checkpoint {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let mut gguf: Gguf = tiny_llama(1);
        std::fs::write(&path, gguf.to_bytes()).unwrap();
        let values = crate::open(&path)
            .unwrap_or_else(|error| panic!("{error}"))
            .weights
            .weight(TABLE)
            .unwrap()
            .to_f32();
        let table = gguf.tensors.iter().find(|tensor| tensor.name.starts_with("token_embd")).unwrap();
        let values: Vec<f32> = values.iter().enumerate().map(|(at, &x)| change(at, x)).collect();
        let head = GgufTensor {
            name: "output.weight".into(),
            shape: table.shape.clone(),
            kind: kind as u32,
            bytes: kind.encode(&values),
        };
        gguf.tensors.push(head);
        std::fs::write(&path, gguf.to_bytes()).unwrap();
        crate::open(&path).unwrap_or_else(|error| panic!("{error}"))
    }

    fn is_tied(checkpoint: &Checkpoint) -> bool {
        matches!(&checkpoint.architecture, Architecture::Decoder(arch) if arch.tied_head)
    }

    #[test]
    fn one_matrix_in_two_encodings_is_read_with_more_bits() {
        for (kind, expected) in [(GgufType::F16, Encoding::F16), (GgufType::Q4_0, Encoding::Q8_0)] {
            let untied = open(kind, |_, x| x);
            assert!(!is_tied(&untied));
            let tied = untied.tied().unwrap();
            assert!(is_tied(&tied));
            let table = tied.weights.weight(TABLE).unwrap();
            assert_eq!((table.encoding, table.name.as_str()), (expected, TABLE));
        }
    }

    #[test]
    fn different_matrices_stay() {
        let check = |change: &dyn Fn(usize, f32) -> f32| {
            let found = open(GgufType::F16, change).tied().unwrap();
            assert!(!is_tied(&found));
            assert_eq!(found.weights.weight(TABLE).unwrap().encoding, Encoding::Q8_0);
            assert!(found.weights.has(HEAD));
        };
        check(&|_, x| -x);
        check(&|at, x| if at < 64 { x } else { 0.5 * x });
        check(&|_, _| 0.0);
        check(&|at, x| if at == 0 { f32::NAN } else { x });
    }
}
