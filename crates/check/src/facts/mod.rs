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
pub(super) enum OperatorSupport {
    /// The operator is supported.
    Supported,
    /// The operator is supported, but only for tensors of lower rank.
    RankTooHigh {
        /// Maximum supported rank.
        max: usize,
    },
    /// The operator is supported, but not with this element type.
    UnsupportedType,
    /// The operator runs on another device.
    Unsupported,
    /// The compile of the whole graph fails.
    CompileFails,
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
            Target::OpenVino(_) | Target::IntelNpu(_) => Self {
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
    pub(super) fn support(
        &self,
        operator: &str,
        case: &str,
        element: Element,
        rank: usize,
    ) -> OperatorSupport {
        match self.compiler {
            Compiler::Htp => htp(operator, case, self.equivalent_type(element), rank),
            Compiler::OpenVino => openvino(operator),
        }
    }

    /// Returns whether the table has the operator.
    pub(super) fn has_operator(&self, operator: &str) -> bool {
        self.compiler == Compiler::OpenVino || HTP.contains_key(operator)
    }

    /// Returns half precision for bfloat16 if the target supports bfloat16: both are treated in the same way.
    fn equivalent_type(&self, element: Element) -> Element {
        if self.brain_floats && element == DType::Bf16 { DType::F16.into() } else { element }
    }
}

/// Recorded results of one operator.
type Rows = Vec<Row>;

#[derive(Debug)]
struct Row {
    case: &'static str,
    element: &'static str,
    supported: Vec<usize>,
    refused: Vec<usize>,
    failing: Vec<usize>,
}

static HTP: LazyLock<HashMap<&'static str, Rows>> = LazyLock::new(|| {
    let mut table: HashMap<&'static str, Rows> = HashMap::new();
    for line in HTP_OPERATORS.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.split('\t');
        let operator = fields.next().unwrap_or_default();
        let row = Row {
            case: fields.next().unwrap_or_default(),
            element: fields.next().unwrap_or_default(),
            supported: ranks(fields.next()),
            refused: ranks(fields.next()),
            failing: ranks(fields.next()),
        };
        table.entry(operator).or_default().push(row);
    }
    table
});

/// Reads a list of ranks.
fn ranks(field: Option<&str>) -> Vec<usize> {
    field.unwrap_or_default().split(',').filter_map(|rank| rank.parse().ok()).collect()
}

fn htp(operator: &str, case: &str, element: Element, rank: usize) -> OperatorSupport {
    let Some(rows) = HTP.get(operator) else { return OperatorSupport::Unsupported };
    let name = element.to_string();
    let Some(own) = rows.iter().find(|row| row.case == case && row.element == name) else {
        let any = rows.iter().any(|row| row.case == case && !row.supported.is_empty());
        return if any { OperatorSupport::UnsupportedType } else { OperatorSupport::Unsupported };
    };

    // Scalars are treated like vectors. Few types were recorded for every rank; the others use the results of a related
    // type.
    let rank = rank.max(1);
    let related = if name == "f16" { "f32" } else { "i32" };
    let relative = rows.iter().find(|row| row.case == case && row.element == related).unwrap_or(own);
    if own.supported.is_empty() {
        let answer =
            if own.failing.is_empty() { OperatorSupport::Unsupported } else { OperatorSupport::CompileFails };
        let others = rows.iter().any(|row| row.case == case && !row.supported.is_empty());
        return if answer == OperatorSupport::Unsupported && others {
            OperatorSupport::UnsupportedType
        } else {
            answer
        };
    }

    for row in [own, relative] {
        if row.supported.contains(&rank) {
            return OperatorSupport::Supported;
        }
        // A failure of another type's kernel does not imply that this type fails.
        if row.failing.contains(&rank) && std::ptr::eq(row, own) {
            return OperatorSupport::CompileFails;
        }
        if row.refused.contains(&rank) || row.failing.contains(&rank) {
            let max = row.supported.iter().copied().max().unwrap_or(0);
            return if rank > max {
                OperatorSupport::RankTooHigh { max }
            } else {
                OperatorSupport::Unsupported
            };
        }
    }

    let max = own.supported.iter().chain(&relative.supported).copied().max().unwrap_or(0);
    if rank > max.max(4) { OperatorSupport::RankTooHigh { max } } else { OperatorSupport::Supported }
}

/// Operators that OpenVINO's provider (1.8.1, CPU device) was observed to leave to ONNX Runtime's CPU kernels.
const OPENVINO_REFUSES: &[&str] =
    &["RMSNormalization", "Attention", "RotaryEmbedding", "com.microsoft.GroupQueryAttention"];

fn openvino(operator: &str) -> OperatorSupport {
    match operator {
        // The session cannot be created.
        "com.microsoft.RotaryEmbedding" => OperatorSupport::CompileFails,
        operator if OPENVINO_REFUSES.contains(&operator) => OperatorSupport::Unsupported,
        _ => OperatorSupport::Supported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(operator: &str, case: &str, element: impl Into<Element>, rank: usize, expect: OperatorSupport) {
        let facts = Facts::of(&"qnn:x-elite".parse().unwrap());
        assert_eq!(facts.support(operator, case, element.into(), rank), expect, "{operator} {case} {rank}");
    }

    #[test]
    fn the_recorded_answers_are_read() {
        use OperatorSupport::{CompileFails, RankTooHigh, Supported, Unsupported, UnsupportedType};
        check("Add", "", DType::F32, 4, Supported);
        check("Add", "", DType::F16, 5, Supported);
        check("Add", "", DType::F32, 6, RankTooHigh { max: 5 });
        check("Sqrt", "", DType::F16, 5, RankTooHigh { max: 4 });
        check("Relu", "", DType::I32, 3, UnsupportedType);
        check("Add", "", Element::F64, 3, UnsupportedType);
        check("Erf", "", DType::F32, 3, Unsupported);
        check("Sign", "", DType::F32, 5, CompileFails);
        check("Bespoke", "", DType::F32, 3, Unsupported);
        check("Add", "", DType::Bf16, 3, UnsupportedType);
        check("com.microsoft.MatMulNBits", "4 bits", DType::F16, 3, Supported);
        check("com.microsoft.MatMulNBits", "4 bits", DType::F16, 2, Unsupported);
    }

    #[test]
    fn chips_with_brain_floats_take_them() {
        let facts = Facts::of(&"qnn:x2-elite".parse().unwrap());
        assert_eq!(facts.support("Add", "", DType::Bf16.into(), 3), OperatorSupport::Supported);
        let both = Facts::of(&"qnn:x-elite,x2-elite".parse().unwrap());
        assert_eq!(both.support("Add", "", DType::Bf16.into(), 3), OperatorSupport::UnsupportedType);
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
