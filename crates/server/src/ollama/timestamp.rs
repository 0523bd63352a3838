//! Times in the format of RFC 3339.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::openai;

/// Returns the current time in this format.
pub(super) fn now() -> String {
    rfc_3339(openai::now())
}

/// Formats a time.
pub(super) fn of(time: SystemTime) -> String {
    rfc_3339(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Formats a time in seconds since 1970. The date follows Howard Hinnant's `civil_from_days`.
fn rfc_3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (month, day) =
        (if shifted < 10 { shifted + 3 } else { shifted - 9 }, day_of_year - (153 * shifted + 2) / 5 + 1);
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        assert_eq!(rfc_3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc_3339(951_868_799), "2000-02-29T23:59:59Z");
    }
}
