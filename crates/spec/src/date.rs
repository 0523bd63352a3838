//! Dates of the Gregorian calendar, and times in seconds since 1970.
//!
//! The conversion is our own code because it is the only calendar function that Narthex needs; of the calendar crates,
//! only `chrono` is in the program, as a dependency of the crates for MCP and JSON Schema.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

/// A date in UTC. Its text is `2026-11-21`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    /// Year of the Gregorian calendar.
    pub year: i64,
    /// Month, from 1.
    pub month: u8,
    /// Day of the month, from 1.
    pub day: u8,
}

/// Returns a time in seconds since 1970; 0 for an earlier time.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the current time in seconds since 1970.
pub fn unix_now() -> u64 {
    unix_seconds(SystemTime::now())
}

impl Date {
    /// Returns today's date in UTC.
    pub fn today() -> Self {
        Self::from_unix_seconds(unix_now())
    }

    /// Returns the date `days` after 1970-01-01, by Howard Hinnant's `civil_from_days`.
    pub fn from_unix_days(days: i64) -> Self {
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let day_of_era = z.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        Self { year, month: month as u8, day: (day_of_year - (153 * shifted + 2) / 5 + 1) as u8 }
    }

    /// Returns the date of a time in seconds after 1970-01-01T00:00:00Z.
    pub fn from_unix_seconds(seconds: u64) -> Self {
        Self::from_unix_days((seconds / 86_400) as i64)
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        let check =
            |days, year, month, day| assert_eq!(Date::from_unix_days(days), Date { year, month, day });
        check(0, 1970, 1, 1);
        check(59, 1970, 3, 1);
        check(11_016, 2000, 2, 29);
        check(20_778, 2026, 11, 21);
        check(-1, 1969, 12, 31);
    }
}
