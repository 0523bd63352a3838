//! What a process holds, as Linux tells it.

use std::fs;

use anyhow::Context;

/// One look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// Bytes of memory that belong to no file.
    pub(super) anonymous: u64,
    /// Threads.
    pub(super) threads: u64,
    /// Open files and connections.
    pub(super) files: u64,
}

impl Look {
    /// Looks at a process.
    pub(super) fn at(process: u32) -> anyhow::Result<Self> {
        let told = "this system does not tell what a process holds; run this on Linux";
        let status = fs::read_to_string(format!("/proc/{process}/status")).context(told)?;
        let files = fs::read_dir(format!("/proc/{process}/fd")).context(told)?.count() as u64;
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().trim_end_matches(" kB").parse::<u64>().ok()
        };
        let anonymous = number("RssAnon:").context(told)? * 1024;
        Ok(Self { anonymous, threads: number("Threads:").context(told)?, files })
    }
}

/// The medians of each quarter of a series: where something grows without end, so do they.
pub(super) fn quarters(looks: &[Look]) -> [Look; 4] {
    let quarter = |index: usize| {
        let looks = &looks[index * looks.len() / 4..(index + 1) * looks.len() / 4];
        let middle = |of: fn(&Look) -> u64| {
            let mut values: Vec<u64> = looks.iter().map(of).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        Look {
            anonymous: middle(|look| look.anonymous),
            threads: middle(|look| look.threads),
            files: middle(|look| look.files),
        }
    };
    [0, 1, 2, 3].map(quarter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_have_medians() {
        let looks: Vec<Look> =
            (0..40).map(|value| Look { anonymous: value, threads: 3, files: 100 - value }).collect();
        let found = quarters(&looks);
        assert_eq!(found.map(|look| look.anonymous), [5, 15, 25, 35]);
        assert_eq!(found.map(|look| look.files), [96, 86, 76, 66]);
        assert_eq!(quarters(&[]), [Look { anonymous: 0, threads: 0, files: 0 }; 4]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_is_looked_at() {
        let look = Look::at(std::process::id()).unwrap();
        assert!(look.anonymous > 0 && look.threads > 0 && look.files > 0, "{look:?}");
        assert!(Look::at(u32::MAX).is_err());
    }
}
