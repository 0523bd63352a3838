//! Facts about targets: operators that a target's compiler takes, in which types and ranks, and how much it holds.
//!
//! Hexagon's table was recorded by asking Qualcomm's compiler, operator by operator: `htp_operators.py` asks,
//! `htp_operators.tsv` is what it answered. OpenVINO's list is of operators that were seen to be refused.

use std::{collections::HashMap, sync::LazyLock};

use narthex_graph::Element;
use narthex_spec::{DType, Target};

/// The recorded answers: operator, case, element type, ranks taken, ranks refused, ranks that fail the compile.
const HTP_OPERATORS: &str = include_str!("htp_operators.tsv");

/// Facts about a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    /// The compiler that is asked.
    pub(super) compiler: Compiler,
    /// True if it computes with bfloat16.
    pub(super) brain_floats: bool,
    /// Bytes of weights from which one part is a risk.
    pub(super) part_caution: u64,
    /// Bytes of weights that one part cannot exceed.
    pub(super) part_limit: u64,
    /// Bytes of memory beside the cores; nothing where that is not known.
    pub(super) near_memory: Option<u64>,
    /// Driver processes that a program gets; `None` if the driver sets no bound.
    pub(super) sessions: Option<Sessions>,
}

/// The processes of an NPU's driver that hold a program's graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sessions {
    /// Bytes that one of them holds.
    pub(super) bytes: u64,
    /// Number of processes that a program gets.
    pub(super) count: u64,
}

impl Sessions {
    /// Bytes that all of them hold.
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
    /// It takes it.
    Takes,
    /// It takes the operator, but with fewer axes.
    TooManyAxes {
        /// The most that it takes.
        most: usize,
    },
    /// It takes the operator, but not with this element type.
    OtherTypes,
    /// It leaves it to another device.
    Refuses,
    /// It gives up on the whole graph.
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

    /// Brain floats take the way of half precision, where a chip has them.
    fn stand_in(&self, element: Element) -> Element {
        if self.brain_floats && element == DType::Bf16 { DType::F16.into() } else { element }
    }
}

/// The answers for one operator.
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
    // Scalars are taken like vectors. Few types were asked at every rank; the others go by their wider relative.
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
        // That another type's kernel breaks does not say that this one's does.
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

/// Operators that OpenVINO's provider was seen to leave to the CPU (1.8.1, its CPU device).
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
