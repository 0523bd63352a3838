//! The kernels of this processor, and which instruction set runs them.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use crate::simd::avx512::Avx512;
use crate::{
    activations::{Granularity, Quantize, QuantizedRows},
    limits::{Dots, MulAdds, Reads},
    matmul::{FourBit, MatMul, Scratch},
    packed::PackedMatrix,
    simd::{LANES, Operation, Simd, portable::Portable},
    view::{MatrixMut, MatrixRef},
};

/// Instruction set of this processor.
#[derive(Debug, Clone, Copy)]
enum InstructionSet {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl InstructionSet {
    /// All that this processor has; the one that is expected to be fastest comes first.
    fn available() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        found.extend(Avx512::detect().map(Self::Avx512));
        found.push(Self::Portable(Portable));
        found
    }

    fn name(self) -> &'static str {
        match self {
            Self::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "AVX-512 VNNI",
        }
    }

    fn run<O: Operation>(self, operation: O) -> O::Output {
        match self {
            Self::Portable(set) => set.run(operation),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(set) => set.run(operation),
        }
    }
}

/// Rows from which on a tile of four-bit weights is unpacked to memory instead of in registers.
const UNPACK_ROWS: usize = 13;

/// The kernels, on one instruction set.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    set: InstructionSet,
}

impl Kernels {
    /// The kernels without any instruction set: the reference for all others.
    pub fn portable() -> Self {
        Self { set: InstructionSet::Portable(Portable) }
    }

    /// The kernels on each instruction set of this processor; the last are the portable ones.
    pub fn available() -> Vec<Self> {
        InstructionSet::available().into_iter().map(|set| Self { set }).collect()
    }

    /// The kernels on the instruction set that is expected to be fastest.
    pub fn detect() -> Self {
        Self::available().first().copied().unwrap_or_else(Self::portable)
    }

    /// Name of the instruction set.
    pub fn name(&self) -> &'static str {
        self.set.name()
    }

    /// Rounds activations to eight bits, for products with weights in blocks of `block` inputs.
    ///
    /// # Panics
    /// If `block` is no multiple of 16.
    pub fn quantize(
        &self,
        input: MatrixRef<'_>,
        block: usize,
        granularity: Granularity,
        out: &mut QuantizedRows,
    ) {
        assert!(block > 0 && block.is_multiple_of(16), "blocks of {block}");
        self.set.run(Quantize { input, block, granularity, out });
    }

    /// Multiplies activations with a range of a matrix's columns, which starts at a multiple of 16 and ends at one or
    /// at the last column. `out` has the input's rows and the range's columns.
    ///
    /// # Panics
    /// If shapes or blocks contradict each other.
    pub fn matmul(
        &self,
        input: &QuantizedRows,
        weights: &PackedMatrix,
        columns: Range<usize>,
        scratch: &mut Scratch,
        out: MatrixMut<'_>,
    ) {
        assert_eq!(input.inputs(), weights.inputs(), "inputs of the activations and the weights");
        assert_eq!(input.block(), weights.block(), "blocks of the activations and the weights");
        assert_eq!((out.rows(), out.columns()), (input.rows(), columns.len()), "shape of the output");
        assert!(
            columns.start.is_multiple_of(LANES) && columns.end <= weights.outputs(),
            "columns {columns:?}"
        );
        assert!(columns.end.is_multiple_of(LANES) || columns.end == weights.outputs(), "columns {columns:?}");
        let four_bit = if input.rows() < UNPACK_ROWS { FourBit::InRegisters } else { FourBit::AsBytes };
        self.set.run(MatMul { input, weights, columns, four_bit, scratch, out });
    }

    /// Multiplies bytes in registers, and returns the number of multiply-accumulates: the limit of integer products.
    pub fn run_dots(&self, rounds: usize) -> u64 {
        self.set.run(Dots { rounds })
    }

    /// Multiplies floats in registers, and returns the number of multiply-accumulates: the limit of float products.
    pub fn run_mul_adds(&self, rounds: usize) -> u64 {
        self.set.run(MulAdds { rounds })
    }

    /// Reads bytes from front to back, and returns their number: the limit of everything that memory bounds.
    pub fn run_reads(&self, bytes: &[u8]) -> u64 {
        self.set.run(Reads { bytes })
    }
}
