//! What one rendering may produce and read at once, in bytes, and the checks that keep to it.
//!
//! Values are counted as they come into being (strings by their length, containers by their elements, which they
//! share) and weighed before a step reads all of them, elements of elements included: a list may hold another
//! many times, or itself. Where the checks stand is [`super::guard`]'s matter.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value, value::ValueKind};

use super::{MAX_OUTPUT, guard};

/// Bytes of values that a rendering may produce, those that it drops included.
const PRODUCED: usize = 128 << 20;

/// Bytes that a value may weigh which a step reads or takes apart.
const WEIGHT: usize = 64 << 20;

/// What an element of a container counts for.
const ELEMENT: usize = 64;

/// What a character counts for where a string is taken apart.
const CHARACTER: usize = 24;

/// The most that escaping for HTML makes of a byte.
const ESCAPED: usize = 6;

/// How a step reads a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// As text, if it is a string.
    Text,
    /// Piece by piece.
    Items,
}

/// The account of one rendering.
#[derive(Debug, Clone, Default)]
pub(super) struct Budget(Arc<Account>);

#[derive(Debug, Default)]
struct Account {
    produced: AtomicUsize,
    written: AtomicUsize,
}

/// The error of whatever is over a limit.
pub(super) fn over(what: &str, limit: usize) -> Error {
    let detail = format!("expected {what} of at most {limit} bytes, found more");
    Error::new(ErrorKind::InvalidOperation, detail)
}

fn spend(counter: &AtomicUsize, bytes: usize, limit: usize) -> bool {
    counter.fetch_add(bytes.min(limit + 1), Ordering::Relaxed) + bytes <= limit
}

impl Budget {
    /// Adds the checks to an environment, under the names by which guarded templates call them.
    pub(super) fn install(&self, env: &mut Environment<'_>) {
        for (name, read) in guard::WEIGHERS {
            env.add_filter(name, move |value: Value| weigh(&value, read).map(|_| value));
        }
        let account = self.clone();
        env.add_filter(guard::CHARGE, move |value: Value| account.charge(&value).map(|()| value));
        let account = self.clone();
        env.set_formatter(move |out, state, value| account.write(out, state, value));
    }

    /// Counts a value that a step has made.
    fn charge(&self, value: &Value) -> Result<(), Error> {
        let bytes = match value.as_str() {
            Some(text) => text.len(),
            None => elements(value)?.saturating_mul(ELEMENT),
        };
        if spend(&self.0.produced, bytes, PRODUCED) { Ok(()) } else { Err(over("values", PRODUCED)) }
    }

    /// Writes a value, into the output or into what is captured of it.
    fn write(&self, out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
        let escaped = if matches!(state.auto_escape(), AutoEscape::None) { 1 } else { ESCAPED };
        let bytes = weigh(value, Use::Text)?.saturating_mul(escaped);
        if !spend(&self.0.written, bytes, MAX_OUTPUT) {
            return Err(over("output", MAX_OUTPUT));
        }
        minijinja::escape_formatter(out, state, value)
    }
}

/// Whether a value has elements.
fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable)
}

/// Elements of a container, as many as could be paid for; some containers know their length only once it is counted.
pub(super) fn elements(value: &Value) -> Result<usize, Error> {
    const MOST: usize = PRODUCED / ELEMENT + 1;
    match value.len() {
        _ if !is_container(value) => Ok(0),
        Some(length) => Ok(length),
        None => Ok(value.try_iter()?.take(MOST).count()),
    }
}

/// The weight of all that a value holds; an error where it is too much.
pub(super) fn weigh(value: &Value, read: Use) -> Result<usize, Error> {
    let mut scale = Scale::default();
    let mut pending = Vec::new();
    match (value.as_str(), read) {
        (Some(text), Use::Text) => scale.add(text.len())?,
        (Some(text), Use::Items) => scale.add(text.len().saturating_mul(CHARACTER))?,
        (None, _) => pending.push(value.clone()),
    }
    // Not by recursion: a container that holds itself is as deep as the limit allows.
    while let Some(value) = pending.pop() {
        scale.add(ELEMENT + value.as_str().map_or(0, str::len))?;
        if !is_container(&value) {
            continue;
        }
        let is_map = value.kind() == ValueKind::Map;
        for item in value.try_iter()? {
            // Counted as it is put aside, so that what waits is limited too.
            scale.add(ELEMENT)?;
            if is_map {
                pending.push(value.get_item(&item).unwrap_or_default());
            }
            pending.push(item);
        }
    }
    Ok(scale.0)
}

#[derive(Default)]
struct Scale(usize);

impl Scale {
    fn add(&mut self, bytes: usize) -> Result<(), Error> {
        self.0 = self.0.saturating_add(bytes);
        if self.0 <= WEIGHT { Ok(()) } else { Err(over("a value", WEIGHT)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_weigh_what_they_hold() {
        let check = |value: Value, read, expect: Option<usize>| {
            assert_eq!(weigh(&value, read).ok(), expect, "{:?}", value.kind());
        };
        check(Value::from("four"), Use::Text, Some(4));
        check(Value::from("four"), Use::Items, Some(4 * CHARACTER));
        check(Value::from(1), Use::Text, Some(ELEMENT));
        check(Value::from(vec![1, 2]), Use::Text, Some(5 * ELEMENT));
        check(Value::from("x".repeat(WEIGHT)), Use::Text, Some(WEIGHT));
        check(Value::from("x".repeat(WEIGHT + 1)), Use::Text, None);
        check(Value::from("x".repeat(WEIGHT / CHARACTER + 1)), Use::Items, None);
        let twice = (0..40).fold(Value::from("a"), |value, _| Value::from(vec![value.clone(), value]));
        check(twice, Use::Text, None);
    }

    #[test]
    fn what_is_produced_adds_up() {
        let budget = Budget::default();
        let half = Value::from("x".repeat(PRODUCED / 2));
        assert!(budget.charge(&half).is_ok() && budget.charge(&half).is_ok());
        assert!(budget.charge(&Value::from("x")).is_err());
        assert!(Budget::default().charge(&Value::from(vec![1; 100])).is_ok());
    }
}
