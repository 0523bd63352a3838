//! Who is measured, and against whom.

use std::str::FromStr;

use anyhow::anyhow;

/// One runtime with one form of the model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Narthex with 8-bit weights, its default.
    NarthexW8,
    /// Narthex's package with 8-bit weights in a bare ONNX Runtime loop.
    LoopW8,
    /// llama.cpp with 8-bit weights.
    LlamaQ8,
    /// Narthex with 4-bit weights.
    NarthexW4,
    /// Narthex's package with 4-bit weights in a bare ONNX Runtime loop.
    LoopW4,
    /// llama.cpp with 4-bit weights.
    LlamaQ4,
    /// onnxruntime-genai over the graph of Narthex's package with 4-bit weights.
    GenaiW4,
    /// OpenVINO GenAI over the GGUF file.
    OpenVino,
}

/// A ratio that is recorded: the first side's speed over the second's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub(super) of: Side,
    pub(super) to: Side,
    /// The least ratio wanted, in prefill and in decode alike.
    pub(super) bound: Option<f64>,
}

/// What Narthex must keep of a bare loop's speed.
const LOOP_BOUND: Option<f64> = Some(0.95);

/// The ratios, in the order in which they are shown.
pub(super) const PAIRS: [Pair; 6] = [
    Pair { of: Side::NarthexW8, to: Side::LoopW8, bound: LOOP_BOUND },
    Pair { of: Side::NarthexW4, to: Side::LoopW4, bound: LOOP_BOUND },
    Pair { of: Side::NarthexW8, to: Side::LlamaQ8, bound: None },
    Pair { of: Side::NarthexW4, to: Side::LlamaQ4, bound: None },
    Pair { of: Side::NarthexW4, to: Side::GenaiW4, bound: None },
    Pair { of: Side::NarthexW4, to: Side::OpenVino, bound: None },
];

impl Side {
    /// Every side, in the order in which each round visits them.
    pub(crate) const ALL: [Self; 8] = [
        Self::NarthexW8,
        Self::LoopW8,
        Self::LlamaQ8,
        Self::NarthexW4,
        Self::LoopW4,
        Self::LlamaQ4,
        Self::GenaiW4,
        Self::OpenVino,
    ];

    /// Its name on the command line and in the record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NarthexW8 => "narthex-w8",
            Self::LoopW8 => "loop-w8",
            Self::LlamaQ8 => "llama-q8_0",
            Self::NarthexW4 => "narthex-w4",
            Self::LoopW4 => "loop-w4",
            Self::LlamaQ4 => "llama-q4_0",
            Self::GenaiW4 => "genai-w4",
            Self::OpenVino => "openvino-q4_1",
        }
    }

    /// What runs which weights.
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

    /// The scheme of the package that it runs, if it runs one.
    pub(super) fn scheme(self) -> Option<&'static str> {
        match self {
            Self::NarthexW8 | Self::LoopW8 => Some("w8"),
            Self::NarthexW4 | Self::LoopW4 | Self::GenaiW4 => Some("w4"),
            Self::LlamaQ8 | Self::LlamaQ4 | Self::OpenVino => None,
        }
    }
}

impl FromStr for Side {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|side| side.name() == name)
            .ok_or_else(|| anyhow!("no side is called {name:?}: expected one of {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for side in Side::ALL {
            assert_eq!(side.name().parse::<Side>().unwrap(), side);
        }
        let error = "llama".parse::<Side>().unwrap_err().to_string();
        assert!(error.contains("expected one of narthex-w8, loop-w8"), "{error}");
    }
}
