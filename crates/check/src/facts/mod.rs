//! Facts about targets: the operators that a target's compiler supports, with their types and ranks, and its memory
//! limits.
//!
//! Hexagon's table was recorded by running Qualcomm's compiler on each operator: `htp_operators.py` runs it, and
//! `htp_operators.tsv` has the results. OpenVINO's list has operators that it was observed to refuse.

use std::{collections::HashMap, sync::LazyLock};

use narthex_graph::Element;
use narthex_spec::{DType, Target};

/// Recorded results: operator, case, element type, supported ranks, refused ranks, ranks for which the compile fails.
const HTP_OPERATORS: &str = include_str!("htp_operators.tsv");

/// Facts about a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    /// Compiler of the target.
    pub(super) compiler: Compiler,
    /// `true` if the target computes with bfloat16.
    pub(super) brain_floats: bool,
    /// Size of a part's weights, in bytes, from which it may fail to load.
    pub(super) part_caution: u64,
    /// Maximum size of a part's weights, in bytes.
    pub(super) part_limit: u64,
    /// Size of the memory next to the cores, in bytes; `None` if it is not known.
    pub(super) near_memory: Option<u64>,
    /// Driver processes of a program; `None` if the driver has no such limit.
    pub(super) sessions: Option<Sessions>,
}

/// Processes of an NPU's driver that contain a program's graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sessions {
    /// Number of bytes that one process can hold.
    pub(super) bytes: u64,
    /// Maximum number of processes of a program.
    pub(super) count: u64,
}

impl Sessions {
    /// Returns the number of bytes that all processes can hold together.
    pub(super) fn all(self) -> u64 {
        self.bytes.saturating_mul(self.count)
    }
}

/// Qualcomm's figures for Hexagon.
const HEXAGON_SESSIONS: Sessions = Sessions { bytes: 3_750_000_000, count: 4 };

/// A vendor's compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compiler {
    /// Qualcomm's, for Hexagon NPUs.
    Htp,
    /// Intel's.
    OpenVino,
}

/// A compiler's answer for an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The operator is supported.
    Takes,
    /// The operator is supported, but only for tensors of lower rank.
    TooManyAxes {
        /// Maximum supported rank.
        most: usize,
    },
    /// The operator is supported, but not with this element type.
    OtherTypes,
    /// The operator runs on another device.
    Refuses,
    /// The compile of the whole graph fails.
    Fails,
}

impl Facts {
    pub(super) fn of(target: &Target) -> Self {
        match target {
            Target::Qnn(chips) => {
                let facts = chips.iter().map(|chip| chip.spec());
                let wide = facts.clone().all(|facts| facts.htp_arch >= 81);
                let near = facts.map(|facts| u64::from(facts.vtcm_mb) << 20).min();
                Self {
                    compiler: Compiler::Htp,
                    brain_floats: wide,
                    part_caution: target.part_bytes(),
                    part_limit: if wide { 3_750_000_000 } else { 2 << 30 },
                    near_memory: near,
                    sessions: Some(HEXAGON_SESSIONS),
                }
            }
            Target::OpenVino(_) => Self {
                compiler: Compiler::OpenVino,
                brain_floats: false,
                part_caution: target.part_bytes(),
                part_limit: 8 << 30,
                near_memory: None,
                sessions: None,
            },
        }
    }

    /// Returns the compiler's answer for an operator, in one of the recorded cases, on a tensor of this type and rank.
    pub(super) fn ask(&self, operator: &str, case: &str, element: Element, rank: usize) -> Answer {
        match self.compiler {
            Compiler::Htp => htp(operator, case, self.stand_in(element), rank),
            Compiler::OpenVino => openvino(operator),
        }
    }

    /// Returns whether the table has the operator.
    pub(super) fn knows(&self, operator: &str) -> bool {
        self.compiler == Compiler::OpenVino || HTP.contains_key(operator)
    }

    /// Returns half precision for bfloat16 if the target supports bfloat16: both are treated in the same way.
    fn stand_in(&self, element: Element) -> Element {
        if self.brain_floats && element == DType::Bf16 { DType::F16.into() } else { element }
    }
}

/// Recorded results of one operator.
type Rows = Vec<Row>;

#[derive(Debug)]
struct Row {
    case: &'static str,
    element: &'static str,
    taken: Vec<usize>,
    refused: Vec<usize>,
    failing: Vec<usize>,
}

static HTP: LazyLock<HashMap<&'static str, Rows>> = LazyLock::new(|| {
    let mut table: HashMap<&'static str, Rows> = HashMap::new();
    for line in HTP_OPERATORS.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.split('\t');
        let mut field = || fields.next().unwrap_or_default();
        let (operator, case, element) = (field(), field(), field());
        let mut ranks = || field().split(',').filter_map(|rank| rank.parse().ok()).collect();
        let row = Row { case, element, taken: ranks(), refused: ranks(), failing: ranks() };
        table.entry(operator).or_default().push(row);
    }
    table
});

fn htp(operator: &str, case: &str, element: Element, rank: usize) -> Answer {
    let Some(rows) = HTP.get(operator) else { return Answer::Refuses };
    let name = element.to_string();
    let row = |wanted: &str| rows.iter().find(|row| row.case == case && row.element == wanted);
    let Some(own) = row(&name) else {
        let any = rows.iter().any(|row| row.case == case && !row.taken.is_empty());
        return if any { Answer::OtherTypes } else { Answer::Refuses };
    };
    // Scalars are treated like vectors. Few types were recorded for every rank; the others use the results of a related
    // type.
    let rank = rank.max(1);
    let relative = row(if name == "f16" { "f32" } else { "i32" }).unwrap_or(own);
    if own.taken.is_empty() {
        let answer = if own.failing.is_empty() { Answer::Refuses } else { Answer::Fails };
        let others = rows.iter().any(|row| row.case == case && !row.taken.is_empty());
        return if answer == Answer::Refuses && others { Answer::OtherTypes } else { answer };
    }
    for row in [own, relative] {
        if row.taken.contains(&rank) {
            return Answer::Takes;
        }
        // A failure of another type's kernel does not imply that this type fails.
        if row.failing.contains(&rank) && std::ptr::eq(row, own) {
            return Answer::Fails;
        }
        if row.refused.contains(&rank) || row.failing.contains(&rank) {
            let most = row.taken.iter().copied().max().unwrap_or(0);
            return if rank > most { Answer::TooManyAxes { most } } else { Answer::Refuses };
        }
    }
    let most = own.taken.iter().chain(&relative.taken).copied().max().unwrap_or(0);
    if rank > most.max(4) { Answer::TooManyAxes { most } } else { Answer::Takes }
}

/// Operators that OpenVINO's provider (1.8.1, CPU device) was observed to leave to ONNX Runtime's CPU kernels.
const OPENVINO_REFUSES: &[&str] =
    &["RMSNormalization", "Attention", "RotaryEmbedding", "com.microsoft.GroupQueryAttention"];

fn openvino(operator: &str) -> Answer {
    match operator {
        // The session cannot be created.
        "com.microsoft.RotaryEmbedding" => Answer::Fails,
        operator if OPENVINO_REFUSES.contains(&operator) => Answer::Refuses,
        _ => Answer::Takes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(operator: &str, case: &str, element: impl Into<Element>, rank: usize, expect: Answer) {
        let facts = Facts::of(&"qnn:x-elite".parse().unwrap());
        assert_eq!(facts.ask(operator, case, element.into(), rank), expect, "{operator} {case} {rank}");
    }

    #[test]
    fn the_recorded_answers_are_read() {
        use Answer::{Fails, OtherTypes, Refuses, Takes, TooManyAxes};
        check("Add", "", DType::F32, 4, Takes);
        check("Add", "", DType::F16, 5, Takes);
        check("Add", "", DType::F32, 6, TooManyAxes { most: 5 });
        check("Sqrt", "", DType::F16, 5, TooManyAxes { most: 4 });
        check("Relu", "", DType::I32, 3, OtherTypes);
        check("Add", "", Element::F64, 3, OtherTypes);
        check("Erf", "", DType::F32, 3, Refuses);
        check("Sign", "", DType::F32, 5, Fails);
        check("Bespoke", "", DType::F32, 3, Refuses);
        check("Add", "", DType::Bf16, 3, OtherTypes);
        check("com.microsoft.MatMulNBits", "4 bits", DType::F16, 3, Takes);
        check("com.microsoft.MatMulNBits", "4 bits", DType::F16, 2, Refuses);
    }

    #[test]
    fn chips_with_brain_floats_take_them() {
        let facts = Facts::of(&"qnn:x2-elite".parse().unwrap());
        assert_eq!(facts.ask("Add", "", DType::Bf16.into(), 3), Answer::Takes);
        let both = Facts::of(&"qnn:x-elite,x2-elite".parse().unwrap());
        assert_eq!(both.ask("Add", "", DType::Bf16.into(), 3), Answer::OtherTypes);
    }

    #[test]
    fn every_row_is_whole() {
        let mut rows = 0;
        for line in HTP_OPERATORS.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            assert_eq!(fields.len(), 6, "{line}");
            let ranks: Vec<&str> =
                fields[3..].iter().flat_map(|f| f.split(',')).filter(|f| !f.is_empty()).collect();
            assert!(!ranks.is_empty() && ranks.iter().all(|rank| rank.parse::<usize>().is_ok()), "{line}");
            rows += 1;
        }
        assert!(rows > 500, "{rows}");
    }
}
