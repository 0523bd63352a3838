//! The page that records a run.

use super::{
    Platform, PlatformReport,
    steps::{Step, StepOutcome, Steps},
};
use xtask_tools::record;

/// Formats the page.
pub(super) fn page(command: &str, commit: &str, reports: &[PlatformReport], linux: &Steps) -> String {
    let sections: String = reports.iter().map(section).collect();
    format!(
        "# Windows and Arm under emulation, {}\n\n`{command}` on {commit}, {}; narthex {}, built with \
         `opt-level=1` and without debug information; {}. Nothing here ran on the hardware of the platform: every time is a \
         time under emulation and no measure of speed. Greedy tokens, embeddings and packages are compared with those of \
         Linux x86-64 of the same run.\n\n{sections}## Linux x86-64, for comparison\n\n{}",
        record::today(),
        record::platform(),
        env!("CARGO_PKG_VERSION"),
        compiler(),
        table(linux),
    )
}

fn section(report: &PlatformReport) -> String {
    let title = match report.platform {
        Platform::Windows => "Windows x64",
        Platform::Arm => "Linux arm64",
    };
    let count = |passed: bool| {
        let steps = report.steps.0.iter();
        steps.filter(|step| matches!(step.outcome, StepOutcome::Passed(_)) == passed).count()
    };
    let impossible = count(false) - report.steps.failed();
    format!(
        "## {title}: {} under {}\n\n{} steps passed, {} failed, {impossible} cannot run here; {:.0} minutes under emulation, \
         the builds included.\n\n{}\n",
        report.platform.target().triple(),
        report.emulator,
        count(true),
        report.steps.failed(),
        report.took.as_secs_f64() / 60.0,
        table(&report.steps),
    )
}

fn table(steps: &Steps) -> String {
    let rows: String = steps.0.iter().map(Step::row).collect();
    format!("| Step | Result | Time | Remark |\n|---|---|---:|---|\n{rows}")
}

fn compiler() -> String {
    crate::fuzz::rustc(&["--version"]).unwrap_or_else(|_| "an unknown compiler".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::bail;

    use super::*;

    #[test]
    fn the_page_says_what_ran_and_what_could_not() {
        let mut steps = Steps::default();
        steps.run("`chat`", || Ok("It is Paris.".to_owned()));
        steps.run("`rm`", || bail!("denied"));
        steps.impossible("DirectML", "no GPU");
        let report = PlatformReport {
            platform: Platform::Windows,
            emulator: "wine-8.0".to_owned(),
            steps,
            took: Duration::from_secs(600),
        };
        let page = page("cargo xtask platforms --record", "abc", &[report], &Steps::default());
        for expect in [
            "`cargo xtask platforms --record` on abc,",
            "## Windows x64: x86_64-pc-windows-gnu under wine-8.0\n",
            "1 steps passed, 1 failed, 1 cannot run here; 10 minutes under emulation",
            "| `chat` | ok | 0.0 s | It is Paris. |\n",
            "| `rm` | FAILED | 0.0 s | denied |\n",
            "| DirectML | cannot run | 0.0 s | no GPU |\n",
        ] {
            assert!(page.contains(expect), "{expect}: {page}");
        }
    }
}
