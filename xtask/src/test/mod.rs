//! `cargo xtask test`: every check there is, from nothing but a checkout, one stage after another.
//!
//! Cheap stages come first, and the first that fails ends the run with the command that repeats it alone. What the
//! stages need (a store with two models, a Python environment) is made under the target folder and kept there.
//! Start at [`Stage`]; what a stage does is in [`stages`], and in [`clients`] for the last.

mod clients;
mod count;
pub(crate) mod server;
pub(crate) mod session;
mod stages;
pub(crate) mod tools;

use std::{
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};

use crate::{stamp, terminal, test::session::Session, workspace::Workspace};

/// One step of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The programs that the other stages call.
    Tools,
    /// rustfmt.
    Format,
    /// The house rules.
    Tidy,
    /// Clippy.
    Clippy,
    /// Licences and origins of dependencies.
    Deny,
    /// A store with runtimes and two models.
    Store,
    /// Unit and integration tests.
    Tests,
    /// OpenAI's Python client against a live server.
    Clients,
}

/// Which stages to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Every stage.
    All,
    /// One stage; what it needs from earlier ones must be there.
    Only(Stage),
}

impl Stage {
    /// Every stage, in the order in which they run.
    pub(crate) const ALL: [Self; 8] = [
        Self::Tools,
        Self::Format,
        Self::Tidy,
        Self::Clippy,
        Self::Deny,
        Self::Store,
        Self::Tests,
        Self::Clients,
    ];

    /// The name used with `--only`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Format => "format",
            Self::Tidy => "tidy",
            Self::Clippy => "clippy",
            Self::Deny => "deny",
            Self::Store => "store",
            Self::Tests => "tests",
            Self::Clients => "clients",
        }
    }

    /// What it does, in a line.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Tools => "look for the programs that the stages call",
            Self::Format => "rustfmt changes nothing",
            Self::Tidy => "the house rules hold",
            Self::Clippy => "clippy and the compiler have no warning",
            Self::Deny => "licences, bans and sources of dependencies (cargo-deny)",
            Self::Store => "install runtimes and compile two models into a store",
            Self::Tests => "unit and integration tests",
            Self::Clients => "OpenAI's Python client against a live server",
        }
    }

    /// Runs it; on success gives what is worth repeating in the summary, which may be nothing.
    fn run(self, session: &Session<'_>) -> anyhow::Result<String> {
        match self {
            Self::Tools => tools::check(session),
            Self::Format => stages::format(session),
            Self::Tidy => stages::tidy(session),
            Self::Clippy => stages::clippy(session),
            Self::Deny => stages::deny(session),
            Self::Store => stages::store(session),
            Self::Tests => stages::tests(session),
            Self::Clients => clients::check(session),
        }
    }
}

impl FromStr for Stage {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|stage| stage.name() == name)
            .ok_or_else(|| anyhow!("no stage is called {name:?}: expected one of {}", names()))
    }
}

/// What a chore over real models begins with: the store filled, and the commit as it is now, since what lies in the workspace
/// may change while the chore runs.
pub(crate) fn prepared(workspace: &Workspace) -> anyhow::Result<(String, Session<'_>)> {
    let commit = stamp::commit(workspace)?;
    run(workspace, Choice::Only(Stage::Store))?;
    Ok((commit, Session::new(workspace)?))
}

/// Runs the chosen stages in order, up to the first that fails.
pub(crate) fn run(workspace: &Workspace, choice: Choice) -> anyhow::Result<()> {
    let session = Session::new(workspace)?;
    let chosen = match choice {
        Choice::All => Stage::ALL.to_vec(),
        Choice::Only(stage) => vec![stage],
    };
    let began = Instant::now();
    let mut summary = Vec::new();
    for (index, stage) in chosen.iter().enumerate() {
        terminal::line(format!("\n== {}/{} {}: {}", index + 1, chosen.len(), stage.name(), stage.about()));
        let started = Instant::now();
        let outcome = stage.run(&session);
        summary.push(line(*stage, &outcome, started.elapsed()));
        if let Err(error) = outcome {
            finish(&summary, began.elapsed());
            bail!("{}: {error:#}\nrun it again: cargo xtask test --only {}", stage.name(), stage.name());
        }
    }
    finish(&summary, began.elapsed());
    Ok(())
}

/// A stage's line of the summary.
fn line(stage: Stage, outcome: &anyhow::Result<String>, took: Duration) -> String {
    let (word, detail) = match outcome {
        Ok(detail) => ("ok", detail.as_str()),
        Err(_) => ("FAILED", ""),
    };
    format!("{:<8} {word:<6} {:>7.1} s  {detail}", stage.name(), took.as_secs_f64()).trim_end().to_owned()
}

fn finish(summary: &[String], took: Duration) {
    terminal::line("\n== summary");
    summary.iter().for_each(terminal::line);
    terminal::line(format!("{:<15} {:>7.1} s", "all", took.as_secs_f64()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_found_by_name() {
        for stage in Stage::ALL {
            assert_eq!(stage.name().parse::<Stage>().unwrap(), stage);
        }
        let error = "test".parse::<Stage>().unwrap_err().to_string();
        assert!(error.ends_with("tools, format, tidy, clippy, deny, store, tests, clients"), "{error}");
    }

    #[test]
    fn the_summary_tells_failed_from_passed() {
        let took = Duration::from_millis(1500);
        let check = |outcome, expect: &str| assert_eq!(line(Stage::Deny, &outcome, took), expect);
        check(Ok(String::new()), "deny     ok         1.5 s");
        check(Ok("3 passed".into()), "deny     ok         1.5 s  3 passed");
        check(Err(anyhow!("no")), "deny     FAILED     1.5 s");
    }
}
