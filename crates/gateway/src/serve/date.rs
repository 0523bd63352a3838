//! Today's date for chat templates that print it.

use std::time::{SystemTime, UNIX_EPOCH};

use narthex_spec::Date;

/// Returns today's date in UTC.
pub(crate) fn today() -> Date {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Date::from_unix_seconds(since.map_or(0, |since| since.as_secs()))
}
