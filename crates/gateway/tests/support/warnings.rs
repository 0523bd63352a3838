//! Warnings of the program, which a test compares. They come from threads of the program, so one subscriber records
//! those of all tests.

use std::{
    fmt::{Debug, Write as _},
    sync::{Mutex, Once},
};

use tracing::{
    Event, Level, Metadata,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Recorder;

/// Fields of an event, each with its name.
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= &Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        WARNINGS.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Records all warnings from now on.
pub(crate) fn record() {
    static START: Once = Once::new();
    START.call_once(|| tracing::subscriber::set_global_default(Recorder).unwrap());
}

/// Returns the recorded warnings that contain all `parts`.
pub(crate) fn recorded(parts: &[&str]) -> Vec<String> {
    let warnings = WARNINGS.lock().unwrap();
    warnings.iter().filter(|warning| parts.iter().all(|part| warning.contains(part))).cloned().collect()
}
