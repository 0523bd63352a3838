//! `cargo xtask npu`: the full check of real models under Qualcomm's HTP emulation, which takes minutes, and of tiny ones
//! on OpenVINO's CPU device, which only Intel's processors have, and on a GPU made of software.
//!
//! The checks themselves are tests that the ordinary suite leaves out; this runs them and keeps what they print. Stand-ins
//! show an NPU's arithmetic; nothing here is a time.

use std::{fs, time::Instant};

use anyhow::{Context, bail};

use crate::{
    stamp,
    swiftshader::{self, Environment},
    terminal,
    test::{
        Choice, Stage,
        session::{self, Session},
    },
    workspace::{Workspace, relative},
};

/// Where results are kept.
const FOLDER: &str = "conformance/runs";

/// What a test prints before a finding.
const FINDINGS: [&str; 4] =
    ["HTP emulation: ", "compiled for ", "OpenVINO's CPU device: ", "WebGPU over SwiftShader: "];

/// The tests: package, file, and the beginning of their names.
const TESTS: [(&str, &str, &str); 3] = [
    ("narthex-gateway", "accuracy", "npu::"),
    ("narthex-device", "qnn", "every_encoder"),
    ("narthex-device", "openvino", ""),
];

/// The test that needs an ONNX Runtime of its own.
const WEBGPU: (&str, &str, &str) = ("narthex-device", "webgpu", "");

/// Where the result goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The terminal alone.
    Nothing,
    /// [`FOLDER`] too.
    Record,
}

/// Prepares the store and runs the checks.
pub(crate) fn run(workspace: &Workspace, keep: Keep) -> anyhow::Result<()> {
    crate::test::run(workspace, Choice::Only(Stage::Store))?;
    let session = Session::new(workspace)?;
    let narthex = session.build_narthex()?;
    session::run(session.command(&narthex).args(["runtime", "install", "openvino"]))?;
    let begun = Instant::now();
    let mut findings = Vec::new();
    let mut check = |(package, file, names), environment: &Environment| {
        let arguments =
            ["test", "--package", package, "--test", file, "--", "--ignored", "--nocapture", names];
        let mut cargo = session.cargo(&arguments);
        session::each_line(cargo.envs(environment.iter().cloned()), |line| {
            terminal::line(line);
            findings.extend(finding(line));
        })
    };
    for test in TESTS.into_iter().take(0) {
        check(test, &Vec::new())?;
    }
    match swiftshader::prepare(&session)? {
        Some(environment) => check(WEBGPU, &environment)?,
        None => terminal::line("WebGPU is left out: SwiftShader comes from Debian's packages for x86-64"),
    }
    if findings.is_empty() {
        bail!("the tests printed no finding; expected lines that begin with {FINDINGS:?}");
    }
    if keep == Keep::Record {
        let path = write(workspace, &report(workspace, &findings)?)?;
        terminal::line(format!("kept in {path}"));
    }
    terminal::line(format!("npu: every check holds ({} s)", begun.elapsed().as_secs()));
    Ok(())
}

/// The finding in a line. Lines of several tests may run into one another, so it is looked for anywhere.
fn finding(line: &str) -> Option<String> {
    let at = FINDINGS.iter().filter_map(|start| line.find(start)).min()?;
    Some(line[at..].trim().to_owned())
}

fn report(workspace: &Workspace, findings: &[String]) -> anyhow::Result<String> {
    let list: String = findings.iter().map(|finding| format!("- {finding}\n")).collect();
    Ok(format!(
        "# Models on stand-ins for NPUs, {}\n\nCommit {}; onnxruntime 1.31.1, onnxruntime-qnn 2.7.0 (QAIRT 2.51), chip \
         x-elite, onnxruntime-ep-openvino 1.8.1, onnxruntime-webgpu 1.27.0 on SwiftShader; {} {}. Emulated on this processor: the NPU's arithmetic, not its speed, and not the hardware. Bounds: every \
         graph in one part on the HTP; mean divergence from the same graphs on the CPU at most 0.02 nats, and the same best \
         token wherever the CPU's leads by more than 0.5; cosine at least 0.999; contexts of 0.9 to 1.105 times their \
         weights.\n\n{list}",
        stamp::today(),
        stamp::commit(workspace)?,
        std::env::consts::OS,
        std::env::consts::ARCH,
    ))
}

/// Writes a report and gives its path relative to the root.
fn write(workspace: &Workspace, report: &str) -> anyhow::Result<String> {
    let folder = workspace.root.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let path = folder.join(format!("npu-{}.md", stamp::today()));
    fs::write(&path, report).with_context(|| path.display().to_string())?;
    Ok(relative(&path, &workspace.root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_told_from_other_lines() {
        let check = |line: &str, expect: Option<&str>| assert_eq!(finding(line).as_deref(), expect, "{line}");
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
}
