//! Memory, threads and open files of a process, as Linux reports them.

use std::fs;

use anyhow::Context;

/// Resources of a process at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of anonymous memory (`RssAnon`).
    pub anonymous: u64,
    /// Number of threads.
    pub threads: u64,
    /// Number of open files and connections.
    pub files: u64,
}

impl Usage {
    /// Reads the usage of a process.
    pub fn of(process: u32) -> anyhow::Result<Self> {
        let unsupported = "the memory of a process cannot be read on this system; run this on Linux";
        let status = fs::read_to_string(format!("/proc/{process}/status")).context(unsupported)?;
        let files = fs::read_dir(format!("/proc/{process}/fd")).context(unsupported)?.count() as u64;
        let number = |key: &str| number(&status, key).context(unsupported);
        Ok(Self { anonymous: number("RssAnon:")? * 1024, threads: number("Threads:")?, files })
    }
}

/// Returns the peak of the resident memory of a process in bytes (`VmHWM`), if the system reports it.
pub fn peak_resident(process: u32) -> Option<u64> {
    Some(number(&fs::read_to_string(format!("/proc/{process}/status")).ok()?, "VmHWM:")? * 1024)
}

/// Returns the number after a key in Linux's status of a process.
fn number(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Returns the medians of each quarter of a series. They increase if a resource leaks.
pub fn quarters(samples: &[Usage]) -> [Usage; 4] {
    let quarter = |index: usize| {
        let samples = &samples[index * samples.len() / 4..(index + 1) * samples.len() / 4];
        let middle = |of: fn(&Usage) -> u64| {
            let mut values: Vec<u64> = samples.iter().map(of).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        Usage {
            anonymous: middle(|usage| usage.anonymous),
            threads: middle(|usage| usage.threads),
            files: middle(|usage| usage.files),
        }
    };
    [0, 1, 2, 3].map(quarter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_have_medians() {
        let samples: Vec<Usage> =
            (0..40).map(|value| Usage { anonymous: value, threads: 3, files: 100 - value }).collect();
        let found = quarters(&samples);
        assert_eq!(found.map(|usage| usage.anonymous), [5, 15, 25, 35]);
        assert_eq!(found.map(|usage| usage.files), [96, 86, 76, 66]);
        assert_eq!(quarters(&[]), [Usage { anonymous: 0, threads: 0, files: 0 }; 4]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_usage_of_a_process_is_read() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.anonymous > 0 && usage.threads > 0 && usage.files > 0, "{usage:?}");
        assert!(Usage::of(u32::MAX).is_err());
        assert!(peak_resident(std::process::id()).unwrap() >= usage.anonymous);
        assert_eq!(peak_resident(u32::MAX), None);
    }
}
