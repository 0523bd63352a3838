//! QNN's error numbers in words: what each means, what causes it, and what to do next.
//!
//! The numbers are those of the SDK's headers (QnnCommon.h, QnnGraph.h, QnnContext.h); the causes are what users found.

use std::fmt;

use serde::Serialize;

/// An error number in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The number.
    pub code: u32,
    /// The SDK's name.
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

/// Steps for a graph that does not compile, from the cheapest to the most expensive. `narthex check` takes these steps
/// automatically if the compiler is installed.
pub const LADDER: [&str; 7] = [
    "read qnn_op_trace.json (enable_framework_op_trace=1): which operators were composed, and which not",
    "write the graph as the provider sees it (dump_qnn_ep_input_graph=1) and check it again",
    "write the composed graph (dump_json_qnn_graph=1); it survives a compiler that crashes",
    "raise the log level to verbose and look for \"graph prepare failed\" and \"requires ... bytes of TCM\"",
    "halve the graph until one node is left that does not compile alone",
    "compile with backend_type=ir: if that works, the model is sound and the chip's backend is at fault",
    "compile with backend_type=saver: each call of the backend as a C program, for the vendor",
];

const fn entry(
    code: u32,
    name: &'static str,
    meaning: &'static str,
    cause: &'static str,
    next: &'static str,
) -> Explanation {
    Explanation { code, name, meaning, cause, next }
}

/// Every number that is explained.
const TABLE: &[Explanation] = &[
    entry(
        1000,
        "QNN_COMMON_ERROR_NOT_SUPPORTED",
        "the backend does not do this here",
        "a weight-shared context on a machine without an NPU, or an option that the chip lacks",
        "load each graph as a context of its own, or run it on the chip that it was compiled for",
    ),
    entry(
        1002,
        "QNN_COMMON_ERROR_MEM_ALLOC",
        "the graph could not be prepared; in spite of its name this is not always a lack of memory",
        "an operator needs more of the memory near the cores than there is, an operator on a very large tensor, a norm \
         written out with its weight first, integer arithmetic on 64 bits with five axes, a missing or wrong soc_model, or \
         indeed a full memory",
        "check the model for large tensors and open shapes, give the chip (--target), then follow the ladder",
    ),
    entry(
        1003,
        "QNN_COMMON_ERROR_SYSTEM",
        "the system failed below the backend",
        "a driver or firmware fault",
        "update the NPU's driver and try again",
    ),
    entry(
        1004,
        "QNN_COMMON_ERROR_INVALID_ARGUMENT",
        "an argument is not valid",
        "an option's value, or a tensor that does not fit the graph",
        "compare the options and the inputs with what the provider documents",
    ),
    entry(
        1005,
        "QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED",
        "the operation is not allowed",
        "the process may not use the NPU",
        "run with the rights that the NPU's device file asks for",
    ),
    entry(
        1006,
        "QNN_COMMON_ERROR_PLATFORM_NOT_SUPPORTED",
        "this platform is not supported",
        "the backend's library is not made for this system",
        "install the runtime for this platform",
    ),
    entry(
        1007,
        "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION",
        "the connection to the NPU was lost",
        "the NPU's subsystem restarted",
        "make the session again; the sequence has to be run again from its tokens",
    ),
    entry(
        1008,
        "QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES",
        "libraries of different versions were mixed",
        "two SDKs on one machine",
        "remove and install the runtime again: narthex runtime install qnn",
    ),
    entry(
        1009,
        "QNN_COMMON_ERROR_LOADING_BINARIES",
        "a library could not be loaded",
        "a library of the NPU is missing, or is not signed for this chip",
        "install the NPU's driver, then narthex runtime install qnn",
    ),
    entry(
        1100,
        "QNN_COMMON_ERROR_GENERAL",
        "an error without a name",
        "it is in the verbose log",
        "follow the ladder",
    ),
    entry(
        3110,
        "QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE",
        "an operator was refused as it is configured",
        "an element type, rank or attribute that the operator does not have on this chip",
        "check the model: the operator is named with its form",
    ),
    entry(
        5004,
        "QNN_CONTEXT_ERROR_BINARY_VERSION",
        "the compiled context is of another version",
        "it was made with a newer or older SDK",
        "compile it again with the installed runtime",
    ),
    entry(
        5005,
        "QNN_CONTEXT_ERROR_CREATE_FROM_BINARY",
        "the compiled context could not be loaded",
        "it is for another chip, is damaged, or does not fit into memory",
        "compile it for this chip; load the largest part first",
    ),
    entry(
        5008,
        "QNN_CONTEXT_ERROR_BINARY_CONFIGURATION",
        "the compiled context has another configuration",
        "it was compiled with options that differ from those at load",
        "compile and load with the same options",
    ),
    entry(
        5010,
        "QNN_CONTEXT_ERROR_INVALID_CONFIG",
        "the context's options are not valid",
        "options that exclude each other, such as embedding and sharing",
        "leave options at their defaults and add them one by one",
    ),
    entry(
        5011,
        "QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL",
        "the compiled context runs, but not at its best",
        "it was compiled for an older chip of the line",
        "compile it for this chip",
    ),
    entry(
        6001,
        "QNN_GRAPH_ERROR_INVALID_HANDLE",
        "the graph is gone",
        "its context was freed, or the NPU restarted",
        "make the session again",
    ),
    entry(
        6005,
        "QNN_GRAPH_ERROR_INVALID_OP_CONFIG",
        "an operator's configuration is not valid",
        "the provider composed an operator that the backend refuses",
        "check the model, then follow the ladder",
    ),
    entry(
        6007,
        "QNN_GRAPH_ERROR_UNCONNECTED_NODE",
        "a node is connected to nothing",
        "an output that nobody reads",
        "take unused outputs out of the graph",
    ),
    entry(
        6020,
        "QNN_GRAPH_ERROR_CREATE_FAILED",
        "the graph could not be made",
        "too many graphs in one context, or no memory",
        "split the model into fewer graphs per context",
    ),
    entry(
        6021,
        "QNN_GRAPH_ERROR_OPTIMIZATION_FAILED",
        "the graph could not be optimised",
        "a fusion of the compiler's that fails",
        "lower htp_graph_finalization_optimization_mode, then follow the ladder",
    ),
    entry(
        6022,
        "QNN_GRAPH_ERROR_FINALIZE_FAILED",
        "the graph could not be finished",
        "an operator that the chip cannot lay out",
        "follow the ladder",
    ),
    entry(
        6031,
        "QNN_GRAPH_ERROR_ABORTED",
        "the work was aborted",
        "a cancelled or overdue run",
        "run it again",
    ),
];

/// Ranges of numbers, for those without an entry.
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

/// The words for a number; nothing for one that is not QNN's.
pub fn explain(code: u32) -> Option<Explanation> {
    if let Some(found) = TABLE.iter().find(|entry| entry.code == code) {
        return Some(*found);
    }
    let (_, meaning) = RANGES.iter().find(|(range, _)| range.contains(&code))?;
    Some(entry(
        code,
        "a number without a published name",
        meaning,
        "it is in the verbose log",
        "follow the ladder",
    ))
}

/// The error number in a message of QNN's provider: `Failed to finalize QNN graph. Error code: 1002`.
pub fn code_in(message: &str) -> Option<u32> {
    let lower = message.to_ascii_lowercase();
    let number = |text: &str| {
        let text = text.trim_start_matches([' ', ':', '=', '(', '#']);
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok().filter(|code| explain(*code).is_some())
    };
    let named = ["error code", "qnn error", "error_code", "error:", ", code:"];
    let after =
        |words: &str| lower.match_indices(words).find_map(|(at, _)| number(lower.get(at + words.len()..)?));
    named.iter().find_map(|words| after(words)).or_else(|| {
        TABLE.iter().find(|entry| lower.contains(&entry.name.to_ascii_lowercase())).map(|entry| entry.code)
    })
}

/// Maximum number of log lines in a report.
const MOST_LINES: usize = 3;

/// Maximum number of characters of a log line in a report.
const LONGEST_LINE: usize = 200;

/// The lines of a verbose log that say why a graph was not prepared, each once.
pub fn telling(log: &str) -> Vec<String> {
    const SIGNS: [&str; 4] =
        ["graph prepare failed", "bytes of tcm", "could not create op", "validation failed"];
    let mut told: Vec<String> = Vec::new();
    for line in log.lines() {
        let lower = line.to_ascii_lowercase();
        if SIGNS.iter().any(|sign| lower.contains(sign)) {
            let text: String = line.trim().chars().take(LONGEST_LINE).collect();
            if !told.contains(&text) {
                told.push(text);
            }
        }
        if told.len() == MOST_LINES {
            break;
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_that_say_why_are_told() {
        let log = "Verbose a.cc:1 FinalizeGraphs started.\nError x Op 0x7 requires 0x2400000 bytes of TCM\n\
                   Error x Op 0x7 requires 0x2400000 bytes of TCM\nError y graph prepare failed 13\n";
        assert_eq!(
            telling(log),
            ["Error x Op 0x7 requires 0x2400000 bytes of TCM", "Error y graph prepare failed 13"]
        );
        assert_eq!(telling(&"Could not create op\u{e9}".repeat(400))[0].chars().count(), LONGEST_LINE);
        assert!(telling("").is_empty());
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
        for entry in TABLE {
            assert_eq!(explain(entry.code), Some(*entry));
            assert!(!entry.cause.is_empty() && !entry.next.is_empty() && entry.name.starts_with("QNN_"));
        }
        let codes: std::collections::BTreeSet<u32> = TABLE.iter().map(|entry| entry.code).collect();
        assert_eq!(codes.len(), TABLE.len());
        assert_eq!(explain(7005).map(|found| found.meaning), Some("an error about a tensor"));
        assert_eq!(explain(3), None);
    }
}
