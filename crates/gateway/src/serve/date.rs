//! Today's date for chat templates that print it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns today's year, month and day in UTC. Months and days start at 1.
pub(crate) fn today() -> (i64, u8, u8) {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    from_days((seconds / 86_400) as i64)
}

/// Returns the date `days` after 1970-01-01, by Howard Hinnant's `civil_from_days`.
fn from_days(days: i64) -> (i64, u8, u8) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as u8, (day_of_year - (153 * shifted + 2) / 5 + 1) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        let check = |days, year, month, day| assert_eq!(from_days(days), (year, month, day));
        check(0, 1970, 1, 1);
        check(59, 1970, 3, 1);
        check(11_016, 2000, 2, 29);
        check(20_778, 2026, 11, 21);
        check(-1, 1969, 12, 31);
    }
}
