//! Sides of the benchmark, and the ratios between them.

use clap::ValueEnum;
use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

/// One runtime with one form of the model's weights. The variants are in the order of each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, ValueEnum, VariantArray)]
pub(crate) enum Side {
    /// Narthex with 8-bit weights, which are its default.
    #[strum(serialize = "narthex-w8")]
    #[value(name = "narthex-w8")]
    NarthexW8,
    /// Narthex's package with 8-bit weights in a bare ONNX Runtime loop.
    #[strum(serialize = "loop-w8")]
    #[value(name = "loop-w8")]
    LoopW8,
    /// llama.cpp with 8-bit weights.
    #[strum(serialize = "llama-q8_0")]
    #[value(name = "llama-q8_0")]
    LlamaQ8,
    /// Narthex with 4-bit weights.
    #[strum(serialize = "narthex-w4")]
    #[value(name = "narthex-w4")]
    NarthexW4,
    /// Narthex's package with 4-bit weights in a bare ONNX Runtime loop.
    #[strum(serialize = "loop-w4")]
    #[value(name = "loop-w4")]
    LoopW4,
    /// llama.cpp with 4-bit weights.
    #[strum(serialize = "llama-q4_0")]
    #[value(name = "llama-q4_0")]
    LlamaQ4,
    /// onnxruntime-genai over the graph of Narthex's package with 4-bit weights.
    #[strum(serialize = "genai-w4")]
    #[value(name = "genai-w4")]
    GenaiW4,
    /// OpenVINO GenAI over the GGUF file.
    #[strum(serialize = "openvino-q4_1")]
    #[value(name = "openvino-q4_1")]
    OpenVino,
}

/// A recorded ratio: the speed of `of` divided by the speed of `to`.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpeedPair {
    pub(super) of: Side,
    pub(super) to: Side,
}

/// The ratios, in display order.
pub(super) const PAIRS: [SpeedPair; 6] = [
    SpeedPair { of: Side::NarthexW8, to: Side::LoopW8 },
    SpeedPair { of: Side::NarthexW4, to: Side::LoopW4 },
    SpeedPair { of: Side::NarthexW8, to: Side::LlamaQ8 },
    SpeedPair { of: Side::NarthexW4, to: Side::LlamaQ4 },
    SpeedPair { of: Side::NarthexW4, to: Side::GenaiW4 },
    SpeedPair { of: Side::NarthexW4, to: Side::OpenVino },
];

/// Sides of the measurements other than the standard one: other runtimes with their own weights.
pub(super) const PEERS: [Side; 5] =
    [Side::NarthexW8, Side::LlamaQ8, Side::NarthexW4, Side::LlamaQ4, Side::OpenVino];

/// Sides of the measurements at depth.
pub(super) const AT_DEPTH: [Side; 4] = [Side::NarthexW8, Side::LlamaQ8, Side::NarthexW4, Side::LlamaQ4];

/// Minimum ratios to a peer that Narthex should reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct TargetRatios {
    pub(super) prefill: f64,
    pub(super) decode: f64,
}

impl Side {
    /// Returns its name on the command line and in the record.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }

    /// Returns a description of the program and its weights.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::NarthexW8 => "`narthex bench`, package w8",
            Self::LoopW8 => "bare ONNX Runtime loop, package w8",
            Self::LlamaQ8 => "`llama-bench`, GGUF Q8_0",
            Self::NarthexW4 => "`narthex bench`, package w4",
            Self::LoopW4 => "bare ONNX Runtime loop, package w4",
            Self::LlamaQ4 => "`llama-bench`, GGUF Q4_0",
            Self::GenaiW4 => "onnxruntime-genai, graph of package w4",
            Self::OpenVino => "OpenVINO GenAI, the GGUF as it is (Q4_1)",
        }
    }

    /// Returns whether its weights have 4 bits, rather than 8.
    pub(super) fn has_4_bits(self) -> bool {
        match self {
            Self::NarthexW8 | Self::LoopW8 | Self::LlamaQ8 => false,
            Self::NarthexW4 | Self::LoopW4 | Self::LlamaQ4 | Self::GenaiW4 | Self::OpenVino => true,
        }
    }

    /// Returns the scheme of its package, if it runs a package.
    pub(super) fn scheme(self) -> Option<&'static str> {
        match self {
            Self::NarthexW8 | Self::LoopW8 => Some("w8"),
            Self::NarthexW4 | Self::LoopW4 | Self::GenaiW4 => Some("w4"),
            Self::LlamaQ8 | Self::LlamaQ4 | Self::OpenVino => None,
        }
    }
}
