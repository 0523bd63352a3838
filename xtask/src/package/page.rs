//! The page that records a run.

use std::time::Duration;

use super::{InstallWay, question::Answers};
use xtask_tools::record;

/// Result of one way to install.
pub(super) struct WayReport {
    pub(super) way: InstallWay,
    pub(super) outcome: WayOutcome,
}

/// Outcomes of a way to install.
pub(super) enum WayOutcome {
    /// The answers are right.
    Answered {
        /// Time of the installation.
        installed: Duration,
        answers: Answers,
    },
    /// The machine lacks something; the text is the reason.
    Skipped(String),
    /// The installation or an answer failed; the text is the error.
    Failed(String),
}

impl WayReport {
    /// Returns true if the way failed.
    pub(super) fn failed(&self) -> bool {
        matches!(self.outcome, WayOutcome::Failed(_))
    }
}

/// Returns the command of a way, as a user would type it.
fn command(way: InstallWay) -> &'static str {
    match way {
        InstallWay::Installer => "`install.sh`",
        InstallWay::Pip => "`pip install`",
        InstallWay::Uv => "`uv tool install`",
        InstallWay::Npm => "`npm install --global`",
        InstallWay::Npx => "`npx`",
        InstallWay::Deb => "`apt-get install` of the `.deb`",
        InstallWay::Msi => "`msiexec` of the `.msi`, under wine",
        InstallWay::Cargo => "`cargo install --path crates/cli`",
        InstallWay::Registry => "`cargo install narthex`",
    }
}

/// Returns the row of a way.
pub(super) fn row(report: &WayReport) -> String {
    let seconds = |time: &Duration| format!("{:.1} s", time.as_secs_f64());
    let none = || "–".to_owned();
    let [installed, first, second, text] = match &report.outcome {
        WayOutcome::Answered { installed, answers: Answers { text, first, second } } => {
            [seconds(installed), seconds(first), seconds(second), text.clone()]
        }
        WayOutcome::Skipped(reason) => [none(), none(), none(), format!("skipped: {reason}")],
        WayOutcome::Failed(error) => [none(), none(), none(), format!("FAILED: {error}")],
    };
    // Neither a line break nor a bar can be in a cell.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "/");
    format!("| {} | {installed} | {first} | {second} | {text} |\n", command(report.way))
}

/// Formats the page.
pub(super) fn page(commit: &str, sizes: &[String], reports: &[WayReport], took: Duration) -> String {
    let rows: String = reports.iter().map(row).collect();
    format!(
        "# Installations from packages, {}\n\nCommit {commit}; narthex {}, a release build; {}; {:.0} minutes. `cargo xtask package` made the \
         packages and installed each into a fresh folder, the `.deb` with python3-pip into a root made by debootstrap. Then it asked smollm2:135m \
         \"What is the capital of France?\" twice. The first answer began with an empty store: it includes the download of the model through pip, \
         its compilation and its check, for both forms of `cargo install` also the download of ONNX Runtime, which every other installation contains. The second answer came from a \
         new process. `PATH` had no Cargo, except in `cargo install` itself. With `--path` it used the release build of the same run; from the registry, a folder with the \
         crates as they would be published, it compiled everything.\n\n\
         | Installation | Installed in | First answer after | Second after | Answer |\n|---|---:|---:|---:|---|\n{rows}\n## Files\n\n{}",
        record::today(),
        env!("CARGO_PKG_VERSION"),
        record::platform(),
        took.as_secs_f64() / 60.0,
        record::list(sizes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_row_for_every_outcome() {
        let answers = Answers {
            text: "It is Paris.".to_owned(),
            first: Duration::from_millis(30_200),
            second: Duration::from_millis(1500),
        };
        let outcome = WayOutcome::Answered { installed: Duration::from_secs(2), answers };
        let reports = [
            WayReport { way: InstallWay::Npx, outcome },
            WayReport { way: InstallWay::Deb, outcome: WayOutcome::Skipped("no root".to_owned()) },
            WayReport { way: InstallWay::Uv, outcome: WayOutcome::Failed("a |\nb".to_owned()) },
        ];
        let page = page("abc", &["a.deb: 3.0 MB".to_owned()], &reports, Duration::from_secs(60));
        for expect in [
            "Commit abc;",
            "| `npx` | 2.0 s | 30.2 s | 1.5 s | It is Paris. |\n",
            "| `apt-get install` of the `.deb` | – | – | – | skipped: no root |\n",
            "| `uv tool install` | – | – | – | FAILED: a / b |\n",
            "- a.deb: 3.0 MB\n",
        ] {
            assert!(page.contains(expect), "{expect}: {page}");
        }
        assert_eq!(reports.map(|report| report.failed()), [false, false, true]);
    }
}
