//! Messages of Intel's compiler.

use crate::report::Fix;

/// Beginning of each message.
const SUBJECT: &str = "Intel's compiler";

/// Words before the name of the failing pass.
const PASS: &str = "fails in the pass ";

/// Words of the log before the name of the failing pass.
const LOGGED_PASS: &str = "Failed Pass ";

/// Words of OpenVINO's message before the compiler's own.
const COMPILER_MESSAGE: &str = "Compiler returned msg:";

/// Maximum number of characters of the compiler's own message.
const MAX_CHARS: usize = 300;

/// Describes a refusal by OpenVINO's message and the compiler's log: the failing pass, or else the compiler's message.
pub fn describe(message: &str, log: &str) -> String {
    let logged = log.split(LOGGED_PASS).nth(1).and_then(|rest| rest.split_whitespace().next());
    if let Some(pass) = logged {
        return format!("{SUBJECT} {PASS}{}", pass.chars().take(100).collect::<String>());
    }
    let own = message.split(COMPILER_MESSAGE).nth(1).unwrap_or(message);
    let words: Vec<&str> = own.split_whitespace().collect();
    let text: String = words.join(" ").chars().take(MAX_CHARS).collect();
    format!("{SUBJECT} refuses the graph: {text}")
}

/// Returns what identifies a failure in a message of [`describe`]: the pass, or the whole message. `None` for messages of
/// other compilers.
pub fn kind_of(message: &str) -> Option<&str> {
    let own = message.strip_prefix(SUBJECT)?;
    Some(own.split(PASS).nth(1).unwrap_or(own).trim())
}

/// Returns the next step after a message of [`describe`].
pub(crate) fn fix() -> Fix {
    Fix::manual(
        "write the named nodes with other operators, or keep them out of this graph; Intel takes reports with the graph \
         and the log",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_pass_or_the_message() {
        let openvino = "compile: Exception from core.cpp:120:\nCompilation failed. vclAllocatedExecutableCreate4 result: \
                        0x78000004 - [NPU_VCL] Compiler returned msg: Unsupported data type\n 'f8e4m3'\n";
        let log = "[ERROR] 10:28:27.856 [vpux-compiler] FeasibleAllocation Pass failed : Value 'x' is not covered\n\
                   [ERROR] 10:28:27.867 [vpux-compiler] Failed Pass FeasibleAllocation on Operation loc(fused)\n";
        let check = |log: &str, expect: &str, kind: &str| {
            let text = describe(openvino, log);
            assert_eq!((text.as_str(), kind_of(&text)), (expect, Some(kind)));
        };
        check(log, "Intel's compiler fails in the pass FeasibleAllocation", "FeasibleAllocation");
        check(
            "",
            "Intel's compiler refuses the graph: Unsupported data type 'f8e4m3'",
            "refuses the graph: Unsupported data type 'f8e4m3'",
        );
        assert_eq!(describe("read: no file", ""), "Intel's compiler refuses the graph: read: no file");
        assert_eq!(kind_of("Failed to finalize QNN graph. Error code: 1002"), None);
        assert!(describe(&"\u{e9}".repeat(5000), "").chars().count() < 400);
    }
}
