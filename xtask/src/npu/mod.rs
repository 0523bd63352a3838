//! `cargo xtask npu`: checks real models under Qualcomm's HTP emulation and on WebGPU over SwiftShader.
//!
//! The checks themselves are ignored tests; this command runs them and collects the findings that they print. Emulation
//! reproduces an NPU's arithmetic but not its speed, so no times are reported. With `--target openvino`, Intel's compiler
//! compiles models for Intel's NPUs instead.

mod intel;

use std::time::Instant;

use anyhow::bail;
use clap::{Args, ValueEnum};
use xtask_tools::{
    process,
    record::{self, RecordArgs},
    session::Session,
    terminal,
    workspace::Workspace,
};

use crate::{
    swiftshader::{self, Variables},
    test,
};

/// Options of `npu`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct NpuArgs {
    /// Vendor whose compiler is used.
    #[arg(long, value_enum, default_value = "qnn")]
    target: Vendor,
    /// With `--target openvino`: compile only this model; repeat the option for several.
    #[arg(long)]
    model: Vec<String>,
    /// With `--target openvino`: compile only for this chip; repeat the option for several.
    #[arg(long)]
    chip: Vec<String>,
    /// With `--target openvino`: compile only in this scheme; repeat the option for several [default: w8 and w8a16].
    #[arg(long)]
    scheme: Vec<String>,
    #[command(flatten)]
    record: RecordArgs,
}

/// Vendors of NPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Vendor {
    /// Qualcomm: compile and emulate.
    Qnn,
    /// Intel: compile.
    Openvino,
}

/// Ignored tests of one test program.
struct TestGroup {
    package: &'static str,
    file: &'static str,
    /// Prefix of their names.
    names: &'static str,
    /// Prefixes of the findings that they print; each must occur at least once.
    findings: &'static [&'static str],
}

/// Checks that run on every machine.
const TESTS: [TestGroup; 3] = [
    TestGroup {
        package: "narthex-gateway",
        file: "accuracy",
        names: "npu::",
        findings: &["HTP emulation: ", "compiled for "],
    },
    TestGroup { package: "narthex-device", file: "qnn", names: "every_", findings: &["HTP emulation: "] },
    TestGroup {
        package: "narthex-gateway",
        file: "gateway",
        names: "transcription::",
        findings: &["HTP emulation: "],
    },
];

/// Checks that need an ONNX Runtime with WebGPU.
const WEBGPU: [TestGroup; 2] = [
    TestGroup { package: "narthex-device", file: "gpu", names: "", findings: &["WebGPU over SwiftShader: "] },
    TestGroup {
        package: "narthex-gateway",
        file: "accuracy",
        names: "webgpu::",
        findings: &["WebGPU over SwiftShader: "],
    },
];

/// Prepares the store and runs the checks.
pub(crate) fn run(workspace: &Workspace, args: &NpuArgs) -> anyhow::Result<()> {
    match args.target {
        Vendor::Openvino => intel::run(workspace, args),
        Vendor::Qnn if args.model.is_empty() && args.chip.is_empty() && args.scheme.is_empty() => {
            check_qualcomm(workspace, args.record)
        }
        Vendor::Qnn => bail!("--model, --chip and --scheme select what --target openvino compiles"),
    }
}

fn check_qualcomm(workspace: &Workspace, args: RecordArgs) -> anyhow::Result<()> {
    let (commit, session) = test::prepare(workspace)?;
    let start = Instant::now();
    let mut findings = Vec::new();
    for tests in &TESTS {
        findings.extend(tests.run(&session, &Vec::new())?);
    }
    match swiftshader::prepare(&session)? {
        Some(variables) => {
            for tests in &WEBGPU {
                findings.extend(tests.run(&session, &variables)?);
            }
        }
        None => terminal::line("WebGPU is skipped: SwiftShader needs Debian's packages for x86-64"),
    }
    if args.record {
        record::write(workspace, record::CONFORMANCE, "npu", &report(&commit, &findings))?;
    }
    terminal::line(format!("npu: every check passed ({} s)", start.elapsed().as_secs()));
    Ok(())
}

impl TestGroup {
    /// Runs the tests and returns their findings.
    fn run(&self, session: &Session<'_>, variables: &Variables) -> anyhow::Result<Vec<String>> {
        let Self { package, file, names, .. } = self;
        let arguments =
            ["test", "--package", package, "--test", file, "--", "--ignored", "--nocapture", names];
        let mut cargo = session.cargo(&arguments);
        let mut found = Vec::new();
        process::each_line(cargo.envs(variables.iter().cloned()), |line| {
            terminal::line(line);
            found.extend(self.finding(line));
        })?;
        self.check_complete(&found)?;
        Ok(found)
    }

    /// Returns the finding in a line. It may begin anywhere in the line, because the output of several tests may be
    /// mixed.
    fn finding(&self, line: &str) -> Option<String> {
        let at = self.findings.iter().filter_map(|start| line.find(start)).min()?;
        Some(line[at..].trim().to_owned())
    }

    /// Checks that each kind of finding was printed, which shows that its tests ran.
    fn check_complete(&self, found: &[String]) -> anyhow::Result<()> {
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
    let list = record::list(findings);
    format!(
        "# Models on stand-ins for NPUs, {}\n\nCommit {commit}; onnxruntime 1.31.1, onnxruntime-qnn 2.7.0 (QAIRT 2.51), chip \
         x-elite, onnxruntime-webgpu 1.27.0 on SwiftShader; {}. Emulated on this processor: the NPU's arithmetic, not its speed, and not the hardware. Bounds: every \
         graph in one part on the HTP; mean divergence from the same graphs on the CPU at most 0.02 nats, and the same best \
         token wherever the CPU's leads by more than 0.5; cosine at least 0.999; contexts of 0.9 to 1.1 times their \
         weights.\n\n{list}",
        record::today(),
        record::platform(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed() {
        let parsed =
            crate::parse("npu --target openvino --model llama --chip lunar-lake --scheme w4a16 --record");
        let expect = NpuArgs {
            target: Vendor::Openvino,
            model: vec!["llama".to_owned()],
            chip: vec!["lunar-lake".to_owned()],
            scheme: vec!["w4a16".to_owned()],
            record: RecordArgs { record: true },
        };
        assert_eq!(parsed, Ok(crate::Command::Npu(expect)));
        assert!(crate::parse("npu --target intel").unwrap_err().contains("possible values: qnn, openvino"));
    }

    #[test]
    fn findings_are_recognised() {
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
    fn missing_findings_are_an_error() {
        let check = |found: &[&str], expect: Option<&str>| {
            let found: Vec<String> = found.iter().map(|&finding| finding.to_owned()).collect();
            let missing = TESTS[0].check_complete(&found).err().map(|error| error.to_string());
            assert_eq!(missing.is_some(), expect.is_some(), "{missing:?}");
            assert!(missing.unwrap_or_default().contains(expect.unwrap_or_default()));
        };
        check(&["HTP emulation: 2 nodes", "compiled for x"], None);
        check(&["HTP emulation: 2 nodes"], Some("begin with \"compiled for \""));
        check(&[], Some("npu::* of narthex-gateway/accuracy"));
    }
}
