//! Explanations of QNN's error numbers: meaning, cause and next step.
//!
//! `qnn_errors.tsv` is the table.

use std::{fmt, sync::LazyLock};

use serde::Serialize;

/// Explanation of an error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The number.
    pub code: u32,
    /// Name in the SDK.
    pub name: &'static str,
    /// Meaning.
    pub meaning: &'static str,
    /// Cause.
    pub cause: &'static str,
    /// Next step.
    pub next: &'static str,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}. Usual causes: {}", self.code, self.name, self.meaning, self.cause)
    }
}

/// Steps for a graph that does not compile, from the cheapest to the most expensive. `narthex check` does these steps
/// automatically if the compiler is installed.
pub const DIAGNOSTIC_STEPS: [&str; 7] = [
    "read qnn_op_trace.json (enable_framework_op_trace=1): which operators were composed, and which were not",
    "dump the graph as the provider sees it (dump_qnn_ep_input_graph=1) and check it again",
    "dump the composed graph (dump_json_qnn_graph=1); it remains after the compiler crashes",
    "raise the log level to verbose and look for \"graph prepare failed\" and \"requires ... bytes of TCM\"",
    "bisect the graph until a single node that does not compile remains",
    "compile with backend_type=ir: if that works, the model is valid and the chip's backend causes the failure",
    "compile with backend_type=saver: each call of the backend as a C program, for the vendor",
];

/// Explained numbers: number, name, meaning, cause and next step.
const ROWS: &str = include_str!("qnn_errors.tsv");

static TABLE: LazyLock<Vec<Explanation>> = LazyLock::new(|| {
    let rows = ROWS.lines().filter(|line| !line.starts_with('#'));
    let fields = rows.map(|line| line.split('\t').collect::<Vec<_>>());
    fields
        .filter_map(|row| match row[..] {
            [code, name, meaning, cause, next] => {
                code.parse().ok().map(|code| Explanation { code, name, meaning, cause, next })
            }
            _ => None,
        })
        .collect()
});

/// Ranges of numbers, for numbers without an entry.
const RANGES: &[(std::ops::Range<u32>, &str)] = &[
    (1000..2000, "a general error"),
    (2000..3000, "an error about a property of the backend"),
    (3000..4000, "an error about an operator package"),
    (4000..5000, "an error of the backend"),
    (5000..6000, "an error about a compiled context"),
    (6000..7000, "an error about a graph"),
    (7000..8000, "an error about a tensor"),
    (8000..9000, "an error about registered memory"),
    (14000..15000, "an error about the device"),
];

/// Returns the explanation of a number, or `None` if it is not QNN's.
pub fn explain(code: u32) -> Option<Explanation> {
    if let Some(found) = TABLE.iter().find(|entry| entry.code == code) {
        return Some(*found);
    }
    let (_, meaning) = RANGES.iter().find(|(range, _)| range.contains(&code))?;
    let name = "no published name";
    let cause = "it is in the verbose log";
    Some(Explanation { code, name, meaning, cause, next: "follow the diagnostic steps" })
}

/// Returns the error number in a message of QNN's provider: `Failed to finalize QNN graph. Error code: 1002`.
pub fn code_in(message: &str) -> Option<u32> {
    let lower = message.to_ascii_lowercase();
    for words in ["error code", "qnn error", "error_code", "error:", ", code:"] {
        let code =
            lower.match_indices(words).find_map(|(at, _)| leading_code(lower.get(at + words.len()..)?));
        if code.is_some() {
            return code;
        }
    }
    TABLE.iter().find(|entry| lower.contains(&entry.name.to_ascii_lowercase())).map(|entry| entry.code)
}

/// Returns the error number at the beginning of a text.
fn leading_code(text: &str) -> Option<u32> {
    let text = text.trim_start_matches([' ', ':', '=', '(', '#']);
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|code| explain(*code).is_some())
}

/// Maximum number of log lines in a report.
const MAX_LINES: usize = 3;

/// Maximum number of characters of a log line in a report.
const MAX_LINE_CHARS: usize = 200;

/// Returns the lines of a compiler's log that state why a graph was not prepared, without repetitions.
pub fn relevant_lines(log: &str) -> Vec<String> {
    const SIGNS: [&str; 5] =
        ["graph prepare failed", "bytes of tcm", "could not create op", "validation failed", "pass failed :"];
    let mut lines: Vec<String> = Vec::new();
    for line in log.lines() {
        let lower = line.to_ascii_lowercase();
        if SIGNS.iter().any(|sign| lower.contains(sign)) {
            let text: String = line.trim().chars().take(MAX_LINE_CHARS).collect();
            if !lines.contains(&text) {
                lines.push(text);
            }
        }
        if lines.len() == MAX_LINES {
            break;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relevant_log_lines_are_extracted() {
        let log = "Verbose a.cc:1 FinalizeGraphs started.\nError x Op 0x7 requires 0x2400000 bytes of TCM\n\
                   Error x Op 0x7 requires 0x2400000 bytes of TCM\nError y graph prepare failed 13\n";
        assert_eq!(
            relevant_lines(log),
            ["Error x Op 0x7 requires 0x2400000 bytes of TCM", "Error y graph prepare failed 13"]
        );
        assert_eq!(
            relevant_lines(&"Could not create op\u{e9}".repeat(400))[0].chars().count(),
            MAX_LINE_CHARS
        );
        let intel = "[ERROR] [vpux-compiler] FeasibleAllocation Pass failed : Value 'x' is not covered";
        assert_eq!(relevant_lines(&format!("openvino 2026.4.1\n{intel}\n")), [intel]);
        assert!(relevant_lines("").is_empty());
    }

    #[test]
    fn numbers_are_found_in_messages() {
        let check = |message: &str, expect: Option<u32>| assert_eq!(code_in(message), expect, "{message}");
        check("Failed to finalize QNN graph. Error code: 1002", Some(1002));
        check(
            "[ONNXRuntimeError] : 11 : EP_FAIL : Failed to finalize QNN graph. Error code: 1002",
            Some(1002),
        );
        check("QNN graph execute error. Error code: 6001", Some(6001));
        check("Failed to create context from binary. Error code: 5005", Some(5005));
        check("QNN_COMMON_ERROR_NOT_SUPPORTED", Some(1000));
        check(
            "EP_FAIL : Failed to finalize QNN graph. Error: QNN_COMMON_ERROR_MEM_ALLOC: Memory allocation related error., \
             Code: 1002",
            Some(1002),
        );
        check("Failed to finalize QNN graph. Error: Unknown, Code: 6030", Some(6030));
        check("error code: 17", None);
        check("Error code", None);
        check("all is well at 1002 Hz", None);
        check("error code: 99999999999999999999", None);
    }

    #[test]
    fn every_number_has_a_cause_and_a_next_step() {
        assert_eq!(TABLE.len(), ROWS.lines().filter(|line| !line.starts_with('#')).count());
        for entry in TABLE.iter() {
            assert_eq!(explain(entry.code), Some(*entry));
            assert!(!entry.cause.is_empty() && !entry.next.is_empty() && entry.name.starts_with("QNN_"));
        }
        let codes: std::collections::BTreeSet<u32> = TABLE.iter().map(|entry| entry.code).collect();
        assert_eq!(codes.len(), TABLE.len());
        assert_eq!(explain(7005).map(|found| found.meaning), Some("an error about a tensor"));
        assert_eq!(explain(3), None);
    }
}
