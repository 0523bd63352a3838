//! Times in JSON as whole seconds since 1970, as in OpenAI's API, for `#[serde(with = "crate::report::unix_seconds")]`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use narthex_spec::date::unix_seconds;
use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(crate) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(unix_seconds(*time))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
    let seconds = u64::deserialize(deserializer)?;
    UNIX_EPOCH
        .checked_add(Duration::from_secs(seconds))
        .ok_or_else(|| D::Error::custom(format!("expected seconds since 1970 of a time, found {seconds}")))
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct DatedRecord {
        #[serde(with = "crate::report::unix_seconds")]
        made: SystemTime,
    }

    #[test]
    fn times_are_numbers() {
        let check = |time: SystemTime, seconds: u64| {
            assert_eq!(serde_json::to_value(DatedRecord { made: time }).unwrap(), json!({"made": seconds}));
        };
        check(UNIX_EPOCH + Duration::from_millis(1_763_000_000_999), 1_763_000_000);
        check(UNIX_EPOCH - Duration::from_secs(1), 0);
        let read = |value: Value| serde_json::from_value::<DatedRecord>(value);
        assert_eq!(
            read(json!({"made": 5})).unwrap(),
            DatedRecord { made: UNIX_EPOCH + Duration::from_secs(5) }
        );
        for wrong in [json!(u64::MAX), json!(-1), json!({"secs_since_epoch": 5, "nanos_since_epoch": 0})] {
            assert!(read(json!({ "made": wrong })).is_err());
        }
    }
}
