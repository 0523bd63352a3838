//! One run of a target. It starts from its seeds and its corpus, and ends after its time or at a crash.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::fuzz::{Folders, Target, seeds};

/// Memory limit of the process in MB, including libFuzzer's corpus and the stacks of threads. `fuzz/src/lib.rs` limits
/// the heap.
const PROCESS_LIMIT: u32 = 1024;

/// Time limit for one input in seconds. Templates take longest: half a million steps, several times.
const INPUT_TIME: u32 = 20;

/// Result of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CampaignResult {
    /// The target.
    pub(super) target: Target,
    /// Number of seeds.
    pub(super) seeds: usize,
    /// Number of inputs that were run.
    pub(super) executions: u64,
    /// Number of edges of the code that were reached.
    pub(super) coverage: u64,
    /// Number of pairs of edges and execution counts.
    pub(super) features: u64,
    /// Peak memory of the process, in MB.
    pub(super) peak_mb: u64,
    /// Duration of the run.
    pub(super) duration: Duration,
    /// Files of the inputs that crashed the target.
    pub(super) crashes: Vec<String>,
}

impl CampaignResult {
    /// Formats the result as a line.
    pub(super) fn summary(&self) -> String {
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
    folders: &Folders,
    time: Duration,
) -> anyhow::Result<CampaignResult> {
    let name = target.name();
    let folder = |parent: &Path| -> anyhow::Result<PathBuf> {
        let folder = parent.join(name);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(folder)
    };
    let (corpus, artifacts, scratch) =
        (folder(&folders.corpus)?, folder(&folders.artifacts)?, folder(&folders.scratch)?);
    let seeds_folder = folders.seeds.join(name);
    let count = seeds::write(target, &seeds_folder)?;
    fs::create_dir_all(&folders.logs)?;
    let words = folders.logs.join(format!("{name}.dict"));
    fs::write(&words, seeds::words_of(target)).with_context(|| words.display().to_string())?;
    let log = folders.logs.join(format!("{name}.log"));
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
        // Otherwise files are also written for inputs that take ten seconds, and would count as crashes.
        .arg(format!("-report_slow_units={INPUT_TIME}"))
        .args([format!("-rss_limit_mb={PROCESS_LIMIT}"), "-print_final_stats=1".to_owned()])
        .env("TMPDIR", &scratch)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).with_context(|| log.display().to_string())?);
    let start = Instant::now();
    let status = command.status().with_context(|| program.display().to_string())?;
    let duration = start.elapsed();
    fs::remove_dir_all(&scratch).with_context(|| scratch.display().to_string())?;

    let text = fs::read(&log).with_context(|| log.display().to_string())?;
    let mut result = CampaignResult {
        seeds: count,
        duration,
        ..CampaignResult::read(target, &String::from_utf8_lossy(&text))
    };
    result.crashes = listing(&artifacts)?.difference(&before).cloned().collect();
    if result.crashes.is_empty() && !status.success() {
        result.crashes.push(format!("{status}; see {}", log.display()));
    }
    Ok(result)
}

fn listing(folder: &Path) -> anyhow::Result<BTreeSet<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

impl CampaignResult {
    /// Parses the output of libFuzzer.
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
        // A target that crashes prints no final statistics, but every status line has the number of inputs.
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
            duration: Duration::ZERO,
            crashes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_libfuzzer_is_parsed() {
        let log = "INFO: seed corpus: files: 3\n#4\tINITED cov: 80 ft: 90 corp: 3/9b exec/s: 0 rss: 40Mb\n\
            #1024\tpulse  cov: 81 ft: 92 corp: 4/19b lim: 11 exec/s: 512 rss: 41Mb\nDone 2000 runs in 2 second(s)\n\
            stat::number_of_executed_units: 2000\nstat::average_exec_per_sec:     1000\nstat::peak_rss_mb:              43\n";
        let result = CampaignResult::read(Target::Onnx, log);
        assert_eq!((result.executions, result.coverage, result.features, result.peak_mb), (2000, 81, 92, 43));
        let crashed = CampaignResult::read(Target::Onnx, log.split("Done").next().unwrap());
        assert_eq!((crashed.executions, crashed.coverage), (1024, 81));
        assert_eq!(CampaignResult::read(Target::Onnx, "").executions, 0);
    }
}
