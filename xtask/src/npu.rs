//! `cargo xtask npu`: the full check of real models under Qualcomm's HTP emulation, which takes minutes, and on a GPU made of
//! software.
//!
//! The checks themselves are tests that the ordinary suite leaves out; this runs them and keeps what they print. Stand-ins
//! show an NPU's arithmetic; nothing here is a time.

use std::time::Instant;

use anyhow::bail;

use crate::{
    stamp::{self, Keep},
    swiftshader::{self, Environment},
    terminal,
    test::{
        self,
        session::{self, Session},
    },
    workspace::Workspace,
};

/// Tests that the ordinary suite leaves out.
struct Tests {
    package: &'static str,
    file: &'static str,
    /// The beginning of their names.
    names: &'static str,
    /// What each kind of finding begins with, of which there must be at least one.
    findings: &'static [&'static str],
}

/// What is checked on every machine.
const TESTS: [Tests; 2] = [
    Tests {
        package: "narthex-gateway",
        file: "accuracy",
        names: "npu::",
        findings: &["HTP emulation: ", "compiled for "],
    },
    Tests { package: "narthex-device", file: "qnn", names: "every_", findings: &["HTP emulation: "] },
];

/// What needs an ONNX Runtime of its own.
const WEBGPU: [Tests; 2] = [
    Tests { package: "narthex-device", file: "webgpu", names: "", findings: &["WebGPU over SwiftShader: "] },
    Tests {
        package: "narthex-gateway",
        file: "accuracy",
        names: "webgpu::",
        findings: &["WebGPU over SwiftShader: "],
    },
];

/// Prepares the store and runs the checks.
pub(crate) fn run(workspace: &Workspace, keep: Keep) -> anyhow::Result<()> {
    let (commit, session) = test::prepared(workspace)?;
    let begun = Instant::now();
    let mut findings = Vec::new();
    for tests in &TESTS {
        findings.extend(tests.run(&session, &Vec::new())?);
    }
    match swiftshader::prepare(&session)? {
        Some(environment) => {
            for tests in &WEBGPU {
                findings.extend(tests.run(&session, &environment)?);
            }
        }
        None => terminal::line("WebGPU is left out: SwiftShader comes from Debian's packages for x86-64"),
    }
    if keep == Keep::Record {
        stamp::keep(workspace, stamp::CONFORMANCE, "npu", &report(&commit, &findings))?;
    }
    terminal::line(format!("npu: every check holds ({} s)", begun.elapsed().as_secs()));
    Ok(())
}

impl Tests {
    /// Runs them and gives what they found. That each kind of finding is there shows that its tests ran.
    fn run(&self, session: &Session<'_>, environment: &Environment) -> anyhow::Result<Vec<String>> {
        let Self { package, file, names, .. } = self;
        let arguments =
            ["test", "--package", package, "--test", file, "--", "--ignored", "--nocapture", names];
        let mut cargo = session.cargo(&arguments);
        let mut found = Vec::new();
        session::each_line(cargo.envs(environment.iter().cloned()), |line| {
            terminal::line(line);
            found.extend(self.finding(line));
        })?;
        self.complete(&found)?;
        Ok(found)
    }

    /// The finding in a line. Lines of several tests may run into one another, so it is looked for anywhere.
    fn finding(&self, line: &str) -> Option<String> {
        let at = self.findings.iter().filter_map(|start| line.find(start)).min()?;
        Some(line[at..].trim().to_owned())
    }

    fn complete(&self, found: &[String]) -> anyhow::Result<()> {
        for start in self.findings {
            if !found.iter().any(|finding| finding.starts_with(start)) {
                bail!(
                    "the tests {}* of {}/{} printed no finding; expected lines that begin with {start:?}",
                    self.names,
                    self.package,
                    self.file
                );
            }
        }
        Ok(())
    }
}

fn report(commit: &str, findings: &[String]) -> String {
    let list = stamp::list(findings);
    format!(
        "# Models on stand-ins for NPUs, {}\n\nCommit {commit}; onnxruntime 1.31.1, onnxruntime-qnn 2.7.0 (QAIRT 2.51), chip \
         x-elite, onnxruntime-webgpu 1.27.0 on SwiftShader; {}. Emulated on this processor: the NPU's arithmetic, not its speed, and not the hardware. Bounds: every \
         graph in one part on the HTP; mean divergence from the same graphs on the CPU at most 0.02 nats, and the same best \
         token wherever the CPU's leads by more than 0.5; cosine at least 0.999; contexts of 0.9 to 1.1 times their \
         weights.\n\n{list}",
        stamp::today(),
        stamp::platform(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_told_from_other_lines() {
        let check = |line: &str, expect: Option<&str>| {
            assert_eq!(TESTS[0].finding(line).as_deref(), expect, "{line}");
        };
        check(
            "HTP emulation: 2 texts, least cosine 0.9999",
            Some("HTP emulation: 2 texts, least cosine 0.9999"),
        );
        check(
            "test npu::x ... HTP emulation: head.onnx: 2 nodes ",
            Some("HTP emulation: head.onnx: 2 nodes"),
        );
        check("compiled for qnn:x-elite: 3 graphs", Some("compiled for qnn:x-elite: 3 graphs"));
        check("test result: ok. 2 passed", None);
    }

    #[test]
    fn tests_that_found_nothing_did_not_run() {
        let check = |found: &[&str], expect: Option<&str>| {
            let found: Vec<String> = found.iter().map(|&finding| finding.to_owned()).collect();
            let missing = TESTS[0].complete(&found).err().map(|error| error.to_string());
            assert_eq!(missing.is_some(), expect.is_some(), "{missing:?}");
            assert!(missing.unwrap_or_default().contains(expect.unwrap_or_default()));
        };
        check(&["HTP emulation: 2 nodes", "compiled for x"], None);
        check(&["HTP emulation: 2 nodes"], Some("begin with \"compiled for \""));
        check(&[], Some("npu::* of narthex-gateway/accuracy"));
    }
}
