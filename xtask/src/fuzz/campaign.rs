//! One target's run: from its seeds and what earlier runs found, under limits, until its time is up or it breaks.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::fuzz::{Places, Target, seeds};

/// Megabytes that the whole process may take, libFuzzer's corpus and the stacks of threads included. The heap has a
/// limit of its own, in `fuzz/src/lib.rs`.
const PROCESS_LIMIT: u32 = 1024;

/// Seconds that one input may take. Templates have the longest: half a million steps, several times.
const INPUT_TIME: u32 = 20;

/// What became of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// The target.
    pub(super) target: Target,
    /// How many seeds it began with.
    pub(super) seeds: usize,
    /// Inputs that were run.
    pub(super) executions: u64,
    /// Edges of the code that were reached.
    pub(super) coverage: u64,
    /// Edges with how often they were taken.
    pub(super) features: u64,
    /// The most memory of the process, in MB.
    pub(super) peak_mb: u64,
    /// How long it ran.
    pub(super) took: Duration,
    /// Files of the inputs that broke it.
    pub(super) crashes: Vec<String>,
}

impl Outcome {
    /// It in a line.
    pub(super) fn line(&self) -> String {
        format!(
            "{} seeds, {} inputs, {} edges, {} MB, {} crashes",
            self.seeds,
            self.executions,
            self.coverage,
            self.peak_mb,
            self.crashes.len()
        )
    }
}

/// Runs a target.
pub(super) fn run(
    target: Target,
    program: &Path,
    places: &Places,
    time: Duration,
) -> anyhow::Result<Outcome> {
    let name = target.name();
    let folder = |parent: &Path| -> anyhow::Result<PathBuf> {
        let folder = parent.join(name);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(folder)
    };
    let (corpus, artifacts, scratch) =
        (folder(&places.corpus)?, folder(&places.artifacts)?, folder(&places.scratch)?);
    let seeds_folder = places.seeds.join(name);
    let count = seeds::write(target, &seeds_folder)?;
    fs::create_dir_all(&places.logs)?;
    let words = places.logs.join(format!("{name}.dict"));
    fs::write(&words, seeds::words_of(target)).with_context(|| words.display().to_string())?;
    let log = places.logs.join(format!("{name}.log"));
    let before = listing(&artifacts)?;

    let mut command = Command::new(program);
    command
        .arg(&corpus)
        .arg(&seeds_folder)
        .arg(format!("-dict={}", words.display()))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-max_total_time={}", time.as_secs()))
        .arg(format!("-max_len={}", target.max_bytes()))
        .arg(format!("-timeout={INPUT_TIME}"))
        .args([format!("-rss_limit_mb={PROCESS_LIMIT}"), "-print_final_stats=1".to_owned()])
        .env("TMPDIR", &scratch)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).with_context(|| log.display().to_string())?);
    let began = Instant::now();
    let status = command.status().with_context(|| program.display().to_string())?;
    let took = began.elapsed();
    fs::remove_dir_all(&places.scratch).with_context(|| places.scratch.display().to_string())?;

    let text = fs::read(&log).with_context(|| log.display().to_string())?;
    let mut outcome =
        Outcome { seeds: count, took, ..Outcome::read(target, &String::from_utf8_lossy(&text)) };
    outcome.crashes = listing(&artifacts)?.difference(&before).cloned().collect();
    if outcome.crashes.is_empty() && !status.success() {
        outcome.crashes.push(format!("{status}; see {}", log.display()));
    }
    Ok(outcome)
}

fn listing(folder: &Path) -> anyhow::Result<BTreeSet<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

impl Outcome {
    /// Reads what libFuzzer printed.
    fn read(target: Target, log: &str) -> Self {
        let stat = |name: &str| {
            let values = log.lines().filter_map(|line| line.strip_prefix("stat::")?.strip_prefix(name));
            values
                .filter_map(|rest| rest.trim_start_matches(':').trim().parse().ok())
                .next_back()
                .unwrap_or(0)
        };
        let status = |name: &str| {
            let lines = log.lines().rev().filter(|line| line.starts_with('#'));
            lines
                .filter_map(|line| line.split_once(name)?.1.split_whitespace().next()?.parse().ok())
                .next()
                .unwrap_or(0)
        };
        // A target that breaks prints no final statistics, but it has counted its inputs in every line.
        let counted = || {
            log.lines().rev().find_map(|line| line.strip_prefix('#')?.split_whitespace().next()?.parse().ok())
        };
        let executions = stat("number_of_executed_units");
        Self {
            target,
            seeds: 0,
            executions: if executions > 0 { executions } else { counted().unwrap_or(0) },
            coverage: status(" cov: "),
            features: status(" ft: "),
            peak_mb: stat("peak_rss_mb"),
            took: Duration::ZERO,
            crashes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_prints_is_read() {
        let log = "INFO: seed corpus: files: 3\n#4\tINITED cov: 80 ft: 90 corp: 3/9b exec/s: 0 rss: 40Mb\n\
            #1024\tpulse  cov: 81 ft: 92 corp: 4/19b lim: 11 exec/s: 512 rss: 41Mb\nDone 2000 runs in 2 second(s)\n\
            stat::number_of_executed_units: 2000\nstat::average_exec_per_sec:     1000\nstat::peak_rss_mb:              43\n";
        let outcome = Outcome::read(Target::Onnx, log);
        assert_eq!(
            (outcome.executions, outcome.coverage, outcome.features, outcome.peak_mb),
            (2000, 81, 92, 43)
        );
        let broken = Outcome::read(Target::Onnx, log.split("Done").next().unwrap());
        assert_eq!((broken.executions, broken.coverage), (1024, 81));
        assert_eq!(Outcome::read(Target::Onnx, "").executions, 0);
    }
}
