//! Test counts over several test programs, and the names of failed tests, for the summary.

use std::fmt;

/// Maximum number of failed tests that are named.
const MAX_NAMED: usize = 20;

/// Numbers of tests by result, and the names of the failed ones.
#[derive(Debug, Default)]
pub(crate) struct TestCount {
    passed: usize,
    failed: usize,
    ignored: usize,
    failures: Vec<String>,
}

impl TestCount {
    /// Adds the numbers in the closing line of a test program, or the name of a failed test; ignores other lines.
    pub(crate) fn add(&mut self, line: &str) {
        let failure = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED"));
        self.failures.extend(failure.map(str::to_owned));
        let Some(result) = line.strip_prefix("test result: ") else { return };
        let words: Vec<&str> = result.split([' ', ';']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(number) = pair[0].parse::<usize>() else { continue };
            match pair[1] {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

impl fmt::Display for TestCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed; {} failed; {} ignored", self.passed, self.failed, self.ignored)?;
        let Some((first, others)) = self.failures.split_first() else { return Ok(()) };
        write!(f, "; failed: {first}")?;
        for name in others.iter().take(MAX_NAMED - 1) {
            write!(f, ", {name}")?;
        }
        if self.failures.len() > MAX_NAMED {
            f.write_str(", …")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_add_up() {
        let mut count = TestCount::default();
        for line in [
            "running 3 tests",
            "test a ... ok",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.01s",
            "3 passed in a log line",
            "test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        ] {
            count.add(line);
        }
        assert_eq!(count.to_string(), "5 passed; 4 failed; 1 ignored");
    }

    #[test]
    fn failed_tests_are_named() {
        let mut count = TestCount::default();
        for line in ["test a::b ... FAILED", "test c ... ok", "test d - e (line 3) ... FAILED"] {
            count.add(line);
        }
        assert_eq!(count.to_string(), "0 passed; 0 failed; 0 ignored; failed: a::b, d - e (line 3)");
        (0..MAX_NAMED).for_each(|number| count.add(&format!("test t{number} ... FAILED")));
        let text = count.to_string();
        assert!(text.ends_with(", t17, …"), "{text}");
    }
}
