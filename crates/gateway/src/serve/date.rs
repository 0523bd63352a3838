//! Today's date for chat templates that print it.

use narthex_spec::{Date, date::unix_now};

/// Returns today's date in UTC.
pub(crate) fn today() -> Date {
    Date::from_unix_seconds(unix_now())
}
