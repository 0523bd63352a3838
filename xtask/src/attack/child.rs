//! Processes under attack. Each is started with its own store, and its time and memory are monitored.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;

use super::{MEMORY, Subject};

/// Time between two checks of a process.
const LOOK: Duration = Duration::from_millis(2);

/// Result of a process.
pub(super) struct ProcessResult {
    /// `None` if it was killed because it hung.
    pub(super) status: Option<ExitStatus>,
    pub(super) stderr: String,
    pub(super) took: Duration,
    /// Peak memory in bytes.
    pub(super) peak: u64,
}

impl ProcessResult {
    /// Returns the finding about the process, if there is one.
    pub(super) fn finding(&self) -> Option<String> {
        let Some(status) = self.status else { return Some(format!("hangs for more than {:?}", self.took)) };
        if self.stderr.contains("panicked") {
            return Some(format!("panics: {}", excerpt(&self.stderr)));
        }
        if status.code().is_none() {
            return Some(format!("ends with {status}: {}", excerpt(&self.stderr)));
        }
        // Under wine, a crash has a code too.
        if !status.success() && !self.stderr.contains("error: ") {
            return Some(format!("ends with {status} and no error: {}", excerpt(&self.stderr)));
        }
        (self.peak > MEMORY).then(|| format!("takes {} MB", self.peak / 1_000_000))
    }
}

/// Returns the last line of a text, shortened.
fn excerpt(text: &str) -> String {
    let line = text.lines().rev().find(|line| line.contains("panicked") || !line.trim().is_empty());
    line.unwrap_or_default().chars().take(200).collect()
}

impl Subject<'_> {
    /// Returns a command of the program with the store at `home`, without a network.
    pub(super) fn narthex(&self, home: &Path, args: &[&str]) -> Command {
        let mut command = self.start();
        command
            .args(args)
            .env("NARTHEX_HOME", self.path(home))
            .env("ORT_DYLIB_PATH", self.path(&self.runtime))
            .env("NARTHEX_PYTHON", "/nonexistent/python")
            .env("HF_HUB_OFFLINE", "1")
            .env_remove("RUST_BACKTRACE");
        command
    }

    /// Runs a command to its end, or kills it if it hangs.
    pub(super) fn watch(&self, home: &Path, args: &[&str]) -> anyhow::Result<ProcessResult> {
        let log = tempfile::NamedTempFile::new()?;
        let child = self.narthex(home, args).stdout(Stdio::null()).stderr(log.reopen()?).spawn();
        let (status, took, peak) = wait(child.context("the program cannot be started")?, self.hang())?;
        let stderr = String::from_utf8_lossy(&fs::read(log.path())?).into_owned();
        Ok(ProcessResult { status, stderr, took, peak })
    }
}

/// Waits for a process, and kills it after `limit`. Returns its status, its time and its peak memory in bytes.
fn wait(mut child: Child, limit: Duration) -> anyhow::Result<(Option<ExitStatus>, Duration, u64)> {
    let (start, mut peak) = (Instant::now(), 0);
    loop {
        peak = peak.max(peak_memory(child.id()).unwrap_or(0));
        if let Some(status) = child.try_wait()? {
            return Ok((Some(status), start.elapsed(), peak));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok((None, start.elapsed(), peak));
        }
        thread::sleep(LOOK);
    }
}

/// Returns the peak memory of a running process so far, in bytes (`VmHWM`).
pub(super) fn peak_memory(process: u32) -> Option<u64> {
    memory(process, "VmHWM:")
}

/// Returns the resident memory of a running process, in bytes (`VmRSS`).
pub(super) fn resident_memory(process: u32) -> Option<u64> {
    memory(process, "VmRSS:")
}

fn memory(process: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

/// Returns the path of ONNX Runtime's library in a store, that of the CPU runtime.
pub(super) fn runtime(home: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(home.join("runtimes")).ok()?.flatten().map(|entry| entry.path());
    let cpu = folders
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cpu-")));
    let files =
        cpu.flat_map(|folder| fs::read_dir(folder.join("onnxruntime/capi")).into_iter().flatten().flatten());
    let is_core = |path: &PathBuf| {
        path.file_name().is_some_and(|name| {
            let name = name.to_string_lossy();
            name.starts_with("libonnxruntime.") || name == "onnxruntime.dll"
        })
    };
    files.map(|entry| entry.path()).find(is_core)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_judged() {
        let ended = |status: Option<ExitStatus>, stderr: &str, peak| {
            ProcessResult { status, stderr: stderr.to_owned(), took: Duration::ZERO, peak }.finding()
        };
        let ok = Some(ExitStatus::default());
        assert_eq!(ended(ok, "error: malformed", 0), None);
        assert!(ended(ok, "thread 'main' panicked at x", 0).is_some_and(|text| text.starts_with("panics")));
        assert!(ended(None, "", 0).is_some_and(|text| text.starts_with("hangs")));
        assert!(ended(ok, "", MEMORY + 1).is_some_and(|text| text.starts_with("takes")));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_hangs_is_killed() {
        let sleep = Command::new("sleep").arg("60").spawn().unwrap();
        let (status, took, peak) = wait(sleep, Duration::from_millis(50)).unwrap();
        assert!(status.is_none() && took < Duration::from_secs(30) && peak > 0);
        let (status, ..) = wait(Command::new("true").spawn().unwrap(), Duration::from_secs(30)).unwrap();
        assert!(status.is_some_and(|status| status.success()));
    }
}
