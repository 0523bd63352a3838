//! Times in the format of RFC 3339.

use narthex_spec::{Date, date::unix_now};

/// Returns the current time in the format of RFC 3339.
pub(crate) fn now() -> String {
    rfc_3339(unix_now())
}

/// Returns a time in seconds since 1970 in the format of RFC 3339.
pub(crate) fn rfc_3339(seconds: u64) -> String {
    let date = Date::from_unix_seconds(seconds);
    let second = seconds % 86_400;
    format!("{date}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
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
