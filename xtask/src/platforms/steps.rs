//! Steps of a run, each with its outcome and time. A step that fails does not end the run.

use std::time::{Duration, Instant};

use xtask_tools::terminal;

/// One step of a run.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) outcome: StepOutcome,
    pub(super) took: Duration,
}

/// Outcomes of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// The step passed; the text is a remark.
    Passed(String),
    /// The step cannot run on this machine; the text is the reason.
    Impossible(String),
    /// The step failed; the text is the error.
    Failed(String),
}

/// The steps of one machine, in the order of the run.
#[derive(Debug, Default)]
pub(super) struct Steps(pub(super) Vec<Step>);

impl Steps {
    /// Runs a step and records its outcome. Returns true if it passed.
    pub(super) fn run(&mut self, name: &str, step: impl FnOnce() -> anyhow::Result<String>) -> bool {
        terminal::line(format!("-- {name}"));
        let start = Instant::now();
        let outcome = match step() {
            Ok(remark) => StepOutcome::Passed(remark),
            Err(error) => StepOutcome::Failed(format!("{error:#}")),
        };
        self.add(name, outcome, start.elapsed())
    }

    /// Records a step that cannot run.
    pub(super) fn impossible(&mut self, name: &str, reason: &str) {
        self.add(name, StepOutcome::Impossible(reason.to_owned()), Duration::ZERO);
    }

    fn add(&mut self, name: &str, outcome: StepOutcome, took: Duration) -> bool {
        let step = Step { name: name.to_owned(), outcome, took };
        terminal::line(step.row().trim_end());
        let passed = matches!(step.outcome, StepOutcome::Passed(_));
        self.0.push(step);
        passed
    }

    /// Returns the number of failed steps.
    pub(super) fn failed(&self) -> usize {
        self.0.iter().filter(|step| matches!(step.outcome, StepOutcome::Failed(_))).count()
    }
}

impl Step {
    /// Returns the row of the step in a table.
    pub(super) fn row(&self) -> String {
        let (mark, text) = match &self.outcome {
            StepOutcome::Passed(remark) => ("ok", remark),
            StepOutcome::Impossible(reason) => ("cannot run", reason),
            StepOutcome::Failed(error) => ("FAILED", error),
        };
        // Neither a line break nor a bar can be in a cell.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "/");
        format!("| {} | {mark} | {:.1} s | {text} |\n", self.name, self.took.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_failed_step_is_counted_and_the_next_one_runs() {
        let mut steps = Steps::default();
        assert!(!steps.run("first", || bail!("a |\nb")));
        assert!(steps.run("second", || Ok("fine".to_owned())));
        steps.impossible("third", "no display");
        assert_eq!((steps.failed(), steps.0.len()), (1, 3));
        let rows: Vec<String> = steps.0.iter().map(Step::row).collect();
        assert!(rows[0].starts_with("| first | FAILED | ") && rows[0].ends_with(" | a / b |\n"), "{rows:?}");
        assert!(rows[2].ends_with("| third | cannot run | 0.0 s | no display |\n"), "{rows:?}");
    }
}
