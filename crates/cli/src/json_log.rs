//! The log as JSON objects, one on a line, for programs that collect logs.
//!
//! An object has `time` (RFC 3339), `level`, `target`, `message` and the fields of the event. No event has texts of prompts
//! or answers.

use std::{fmt, time::SystemTime};

use narthex_gateway::redact;
use narthex_spec::Date;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

/// Target of the lines that are no events of the log, such as the address of a server.
const NOTE: &str = "narthex";

/// Formats events as JSON objects.
pub(crate) struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let level = metadata.level().as_str().to_ascii_lowercase();
        writeln!(writer, "{}", object(fields.0, &level, metadata.target(), SystemTime::now()))
    }
}

/// Returns a line that is no event as an object without a line break.
pub(crate) fn note(text: &str) -> String {
    let message = console::strip_ansi_codes(text).into_owned();
    let fields = Map::from_iter([("message".to_owned(), message.into())]);
    object(fields, "info", NOTE, SystemTime::now())
}

/// Returns an object with these fields, without the credentials in its texts.
fn object(mut fields: Map<String, Value>, level: &str, target: &str, now: SystemTime) -> String {
    for value in fields.values_mut() {
        if let Value::String(text) = value {
            *text = redact(text).into_owned();
        }
    }
    fields.insert("time".to_owned(), timestamp(now).into());
    fields.insert("level".to_owned(), level.into());
    fields.insert("target".to_owned(), target.into());
    Value::Object(fields).to_string()
}

/// Returns a time in UTC with milliseconds, as RFC 3339 writes it.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let of_day = seconds % 86_400;
    let hours = of_day / 3600;
    let minutes = of_day / 60 % 60;
    let milliseconds = since.subsec_millis();
    let date = Date::from_unix_seconds(seconds);
    format!("{date}T{hours:02}:{minutes:02}:{:02}.{milliseconds:03}Z", of_day % 60)
}

/// The fields of an event.
struct Fields(Map<String, Value>);

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::Arc,
        time::Duration,
    };

    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    /// Bytes that a log has written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_object_with_its_fields() {
        let written = Written::default();
        let writer = written.clone();
        let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).event_format(JsonLine);
        tracing::subscriber::with_default(log.finish(), || {
            tracing::warn!(target: "t", milliseconds = 7, is_late = true, name = "a\nb", "took {} ms", 7);
        });
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let mut object: Value = serde_json::from_str(&text).unwrap();
        let time = object.as_object_mut().unwrap().remove("time").unwrap();
        assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
        let expect = json!({
            "level": "warn", "target": "t", "message": "took 7 ms", "milliseconds": 7, "is_late": true, "name": "a\nb",
        });
        assert_eq!(object, expect);
    }

    #[test]
    fn notes_have_no_colours_and_no_line_breaks() {
        let line = note("\u{1b}[1mlistening\u{1b}[0m\non http://user:secret@host/");
        let object: Value = serde_json::from_str(&line).unwrap();
        assert!(!line.contains('\n') && !line.contains("secret"), "{line}");
        assert!(object["message"].as_str().unwrap().starts_with("listening\non "), "{line}");
    }

    #[test]
    fn times_are_utc() {
        let check = |millis, expect: &str| {
            assert_eq!(timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(millis)), expect);
        };
        check(0, "1970-01-01T00:00:00.000Z");
        check(1_709_251_199_042, "2024-02-29T23:59:59.042Z");
    }
}
