//! Formats of dates and times as patterns. Those of the compiler allow days and seconds that do not exist, and numbers
//! that never end.

use serde_json::{Map, Value, json};

use super::schema::parts;

/// Dates from the year 1 to 9999, with February 29 only in leap years.
const DATE: &str = concat!(
    r"(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})-(?:",
    r"(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|",
    r"(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|",
    r"02-(?:0[1-9]|1[0-9]|2[0-8]))|",
    r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)",
);

/// Times with up to nine decimal places and a time zone.
const TIME: &str = concat!(
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?",
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))",
);

/// Durations whose numbers have up to four digits.
const DURATION: &str = concat!(
    r"P(?:[0-9]{1,4}W|",
    r"(?:[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)",
    r"(?:T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))?|",
    r"T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))",
);

/// Addresses of e-mail in the form that people write (RFC 5321 without quotation and comments).
const EMAIL: &str = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)+";

/// UUIDs (RFC 9562).
const UUID: &str = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";

/// IPv4 addresses.
const IPV4: &str =
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

/// Host names (RFC 1123).
const HOSTNAME: &str =
    r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?){0,8}";

/// URIs: a scheme and characters that need no quotation (RFC 3986).
const URI: &str = r"[A-Za-z][A-Za-z0-9+.-]{0,31}:[A-Za-z0-9._~:/?#@!$&'()*+,;=%\[\]-]{1,2000}";

/// Replaces the formats of dates, times and durations in a schema and its parts by patterns.
pub(super) fn replace_times(schema: &mut Map<String, Value>) {
    let format = schema.get("format").and_then(Value::as_str);
    if let Some(pattern) = format.and_then(pattern) {
        schema.shift_remove("format");
        if schema.contains_key("pattern") {
            let all = schema.entry("allOf").or_insert_with(|| json!([]));
            if let Some(all) = all.as_array_mut() {
                all.push(json!({"pattern": pattern}));
            }
        } else {
            schema.insert("pattern".to_owned(), pattern.into());
        }
    }
    parts(schema).into_iter().for_each(replace_times);
}

/// Returns a regular expression for the texts of a format; `None` for a format that is only an annotation here.
pub(crate) fn format_pattern(format: &str) -> Option<String> {
    let pattern = match format {
        "email" => EMAIL,
        "uuid" => UUID,
        "ipv4" => IPV4,
        "hostname" => HOSTNAME,
        "uri" => URI,
        other => return pattern(other),
    };
    Some(format!("^(?:{pattern})$"))
}

fn pattern(format: &str) -> Option<String> {
    match format {
        "date" => Some(format!("^(?:{DATE})$")),
        "time" => Some(format!("^(?:{TIME})$")),
        "date-time" => Some(format!("^(?:{DATE}T{TIME})$")),
        "duration" => Some(format!("^(?:{DURATION})$")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_texts_match_what_a_validator_allows() {
        for (format, right, wrong) in [
            ("email", "jane.doe+x@mail.example.org", "jane@@example.org"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000"),
            ("ipv4", "192.168.0.255", "192.168.0.256"),
            ("hostname", "a-b.example", "-a.example"),
            ("uri", "https://example.org/a?b=c#d", "//example.org"),
        ] {
            let found =
                jsonschema::validator_for(&json!({"pattern": format_pattern(format).unwrap()})).unwrap();
            let options = jsonschema::options().should_validate_formats(true);
            let real = options.build(&json!({"format": format})).unwrap();
            assert!(found.is_valid(&json!(right)) && real.is_valid(&json!(right)), "{right}");
            assert!(!found.is_valid(&json!(wrong)) && !real.is_valid(&json!(wrong)), "{wrong}");
        }
        assert_eq!((format_pattern("int32"), format_pattern("date")), (None, pattern("date")));
    }

    #[test]
    fn only_dates_and_times_that_exist_match() {
        for (format, texts) in [
            ("date", &["2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31", "2023-04-30"][..]),
            ("time", &["00:00:00Z", "23:59:59.123456789+23:59", "12:30:00-05:30"]),
            ("date-time", &["2024-02-29T23:59:59Z"]),
            ("duration", &["P1W", "P1Y2M3D", "P3DT4H5M6S", "PT0S", "P2M", "PT5M1S"]),
        ] {
            let mut schema = json!({"items": {"type": "string", "format": format}});
            replace_times(schema.as_object_mut().unwrap());
            let found = jsonschema::validator_for(&schema).unwrap();
            let options = jsonschema::options().should_validate_formats(true);
            let real = options.build(&json!({"format": format})).unwrap();
            for text in texts {
                assert!(found.is_valid(&json!([text])) && real.is_valid(&json!(text)), "{text}");
            }
        }
        for (format, texts) in [
            ("date", &["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31", "2024-13-01", "2024-1-1"][..]),
            ("time", &["24:00:00Z", "12:00:60Z", "12:00:00", "12:00:00.1234567890Z"]),
            ("duration", &["P", "PT", "P1YT", "P12345D", "P1Y3D", "P1W2D"]),
        ] {
            let schema = json!({"pattern": pattern(format).unwrap()});
            let found = jsonschema::validator_for(&schema).unwrap();
            for text in texts {
                assert!(!found.is_valid(&json!(text)), "{text}");
            }
        }
        let mut both = json!({"format": "date", "pattern": "^2"});
        replace_times(both.as_object_mut().unwrap());
        assert_eq!(both, json!({"pattern": "^2", "allOf": [{"pattern": pattern("date").unwrap()}]}));
    }
}
