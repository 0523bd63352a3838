//! Limits on the work of one rendering: bytes that it produces and writes, bytes that it reads, and the size and depth
//! of each value.
//!
//! Every value is measured when it is created: strings by their length, containers with everything in them, since a
//! list may contain another one many times. Lazy sequences become lists, and namespaces cannot be stored. So no value
//! grows after it was measured, contains itself, or is too deep for recursion on a thread's stack.

use minijinja::{
    Environment, Error, Output, State, Value, tests,
    value::{Rest, ValueKind, ValueOrKwargs},
};

use super::{
    growth::growth,
    origin::{self, Read, is_namespace},
    size::{ELEMENT, MAX_VALUE, Size, elements, stored, within},
};

/// Reads operands that are compared, with everything in them.
pub(super) const READ_COMPARED: &str = "(read compared)";
/// Reads the keys and values of a dictionary.
pub(super) const READ_PAIRS: &str = "(read pairs)";
/// Reads a container and the key of its element.
pub(super) const READ_ELEMENT: &str = "(read element)";
/// Reads the names and values of arguments.
pub(super) const READ_NAMED: &str = "(read named)";
/// Reads operands of which only the first level is used.
pub(super) const READ_FIRST_LEVEL: &str = "(read first level)";
/// Reads operands that are written as text.
pub(super) const READ_TEXT: &str = "(read text)";
/// Reads the operands of a multiplication.
pub(super) const READ_FACTORS: &str = "(read factors)";
/// Checks a value that an operator has made.
pub(super) const CHECK_RESULT: &str = "(check result)";
/// Checks a value that is stored in a namespace.
pub(super) const CHECK_ELEMENT: &str = "(check element)";

/// Maximum number of bytes of values and text that a rendering produces, including those that it drops.
const MAX_PRODUCED: usize = 192 << 20;

/// Maximum number of bytes that a rendering writes to its text and to captured blocks. Characters of the template take four
/// bytes, and a buffer of text doubles when it is full.
const MAX_WRITTEN: usize = 72 << 20;

/// Maximum number of bytes that a rendering reads; bytes count each time they are read.
const MAX_READ: usize = 512 << 20;

/// Maximum number of bytes by which the result of a function may exceed its arguments.
const MAX_GROWTH: usize = 16 << 20;

/// Number of bytes counted for a character if a string is split into characters.
const CHARACTER: usize = 24;

/// Bytes counted in one rendering so far.
#[derive(Debug, Default)]
struct Usage {
    produced: usize,
    written: usize,
    read: usize,
}

/// Counts the operands of an operator as read.
type ReadOperands = fn(&mut Usage, &[Value]) -> Result<(), Error>;

/// Returns the operand with an index in the form that the operator receives.
type Seen = fn(usize, Value) -> Value;

/// Adds the checks to an environment.
pub(super) fn install(env: &mut Environment<'_>) {
    // Marks serve the output only; operands of comparisons and lookups have none.
    let reads: [(&str, ReadOperands, Seen); 7] = [
        (READ_COMPARED, Usage::read_each, |_, value| origin::unmarked(value)),
        (READ_PAIRS, Usage::read_each, unmarked_key),
        (
            READ_ELEMENT,
            Usage::read_element,
            |index, value| {
                if index > 0 { origin::unmarked(value) } else { value }
            },
        ),
        (READ_NAMED, Usage::read_first_levels, unmarked_key),
        (READ_FIRST_LEVEL, Usage::read_first_levels, |_, value| value),
        (READ_TEXT, Usage::read_texts, |_, value| origin::spelled(value)),
        (READ_FACTORS, Usage::read_factors, |_, value| value),
    ];

    for (name, read, seen) in reads {
        env.add_function(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            read(usage(state), &args)?;
            // `UnpackList` leaves the first item on top of the stack.
            let seen = args.into_iter().enumerate().map(|(index, value)| seen(index, value)).rev();
            Ok::<_, Error>(Value::from(seen.collect::<Vec<_>>()))
        });
    }
    env.add_function(CHECK_RESULT, |state: &mut State<'_, '_>, value: Value| usage(state).result(value));
    env.add_function(
        CHECK_ELEMENT,
        |value: Value| if is_namespace(&value) { Err(stored()) } else { Ok(value) },
    );
    env.set_formatter(write);
}

/// Returns the operand of a dictionary literal, whose keys have no marks.
fn unmarked_key(index: usize, value: Value) -> Value {
    if index.is_multiple_of(2) { origin::unmarked(value) } else { value }
}

fn usage<'a>(state: &'a mut State<'_, '_>) -> &'a mut Usage {
    state.get_or_insert_extension(Usage::default())
}

/// Returns a function that measures its arguments and its result.
pub(super) fn measured(
    name: &'static str,
    read: Read,
    function: Value,
) -> impl Fn(&mut State<'_, '_>, Rest<ValueOrKwargs>) -> Result<Value, Error> + Send + Sync + 'static {
    move |state, args| call(state, name, read, &args.into_values(), |state, args| function.call(state, args))
}

/// Calls a method by name, and measures its subject, its arguments and its result.
pub(super) fn call_method<'a, 'b>(
    state: &mut State<'a, 'b>,
    name: &str,
    read: Read,
    args: &[Value],
    run: impl FnOnce(&mut State<'a, 'b>, &[Value]) -> Result<Value, Error>,
) -> Result<Value, Error> {
    match name {
        // The filter takes the separator after the items, the method before them.
        "join" => call(state, name, read, &reversed(args), |state, args| run(state, &reversed(args))),
        _ => call(state, name, read, args, run),
    }
}

fn reversed(args: &[Value]) -> Vec<Value> {
    args.iter().rev().cloned().collect()
}

/// Calls a function, and measures its arguments and its result.
fn call<'a, 'b>(
    state: &mut State<'a, 'b>,
    name: &str,
    read: Read,
    args: &[Value],
    run: impl FnOnce(&mut State<'a, 'b>, &[Value]) -> Result<Value, Error>,
) -> Result<Value, Error> {
    usage(state).arguments(name, read, args)?;
    let seen = origin::arguments(name, read, args);
    within(growth(name, &seen)?, MAX_GROWTH, "bytes in a result")?;
    let value = run(state, &seen)?;
    let value = origin::made(name, read, args, value);
    if read == Read::FirstLevel && value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    usage(state).result(value)
}

/// `value is sameas other`. Marks do not distinguish strings.
pub(super) fn is_same(state: &mut State<'_, '_>, value: Value, other: Value) -> Result<bool, Error> {
    let value = compared(state, value)?;
    let other = compared(state, other)?;
    Ok(tests::is_sameas(&value, &other))
}

/// Returns a value for a comparison, without marks if it is a string.
fn compared(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    usage(state).read_first_level(&value)?;
    Ok(if value.as_str().is_some() { origin::unmarked(value) } else { value })
}

/// Writes a value into the output or into a captured block.
fn write(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let bytes = usage(state).read_text(value)?;
    usage(state).write(bytes)?;
    minijinja::escape_formatter(out, state, &origin::spelled(value.clone()))
}

impl Usage {
    fn produce(&mut self, bytes: usize) -> Result<(), Error> {
        self.produced = self.produced.saturating_add(bytes);
        within(self.produced, MAX_PRODUCED, "bytes of values and text")
    }

    fn write(&mut self, bytes: usize) -> Result<(), Error> {
        self.written = self.written.saturating_add(bytes);
        within(self.written, MAX_WRITTEN, "bytes of written text")?;
        self.produce(bytes)
    }

    fn read(&mut self, bytes: usize) -> Result<(), Error> {
        self.read = self.read.saturating_add(bytes);
        within(self.read, MAX_READ, "bytes to read")
    }

    fn read_each(&mut self, values: &[Value]) -> Result<(), Error> {
        values.iter().try_for_each(|value| self.read_all(value).map(drop))
    }

    fn read_texts(&mut self, values: &[Value]) -> Result<(), Error> {
        values.iter().try_for_each(|value| self.read_text(value).map(drop))
    }

    fn read_first_levels(&mut self, values: &[Value]) -> Result<(), Error> {
        values.iter().try_for_each(|value| self.read_first_level(value))
    }

    /// Counts the container and the keys of a look-up.
    fn read_element(&mut self, values: &[Value]) -> Result<(), Error> {
        let Some((container, keys)) = values.split_first() else { return Ok(()) };
        self.read_first_level(container)?;
        self.read_each(keys)
    }

    fn read_first_level(&mut self, value: &Value) -> Result<(), Error> {
        self.read(value.as_str().map_or(0, str::len))
    }

    /// Counts a value as read as text. Returns an upper bound on the bytes of that text.
    fn read_text(&mut self, value: &Value) -> Result<usize, Error> {
        if let Some(text) = value.as_str() {
            self.read(text.len())?;
            return Ok(text.len());
        }
        let size = Size::of(value)?;
        self.read(size.bytes)?;
        size.text_bytes()
    }

    /// Counts a value as read with everything in it. Returns its size in bytes.
    fn read_all(&mut self, value: &Value) -> Result<usize, Error> {
        let bytes = Size::of(value)?.bytes;
        self.read(bytes)?;
        Ok(bytes)
    }

    /// Counts two factors as read, one of which may be a string or sequence to repeat.
    fn read_factors(&mut self, factors: &[Value]) -> Result<(), Error> {
        let mut bytes = 0usize;
        for (index, value) in factors.iter().enumerate() {
            self.read_first_level(value)?;
            let size = value.as_str().map_or(elements(value)?.count().saturating_mul(ELEMENT), str::len);
            self.read(size)?;
            let times = factors.get(1 - index.min(1)).and_then(Value::as_usize).unwrap_or(0);
            bytes = bytes.max(size.saturating_mul(times));
        }
        within(bytes, MAX_GROWTH, "bytes from repeating a value")
    }

    /// Counts a new value, and converts a lazy sequence into a list.
    fn result(&mut self, value: Value) -> Result<Value, Error> {
        let value = if value.kind() == ValueKind::Iterable {
            let mut items = Vec::new();
            for item in value.try_iter()? {
                within((items.len() + 1) * ELEMENT, MAX_VALUE, "bytes in a value")?;
                items.push(item);
            }
            Value::from(items)
        } else {
            value
        };
        match value.as_str() {
            Some(text) => {
                within(text.len(), MAX_VALUE, "bytes in a value")?;
                self.produce(text.len())?;
            }
            None => {
                self.read_all(&value)?;
                self.produce(elements(&value)?.count() * ELEMENT)?;
            }
        }
        Ok(value)
    }

    fn arguments(&mut self, name: &str, read: Read, args: &[Value]) -> Result<(), Error> {
        for (index, arg) in args.iter().enumerate() {
            match read {
                Read::FirstLevel if origin::passes_on(name, read, index, arg) => {
                    self.read_first_level(arg)?
                }
                // Marks are removed from everything in it.
                Read::FirstLevel => self.read_all(arg).map(drop)?,
                Read::Text => self.read_text(arg).map(drop)?,
                Read::Characters => {
                    let size = match arg.as_str() {
                        Some(text) => text.len().saturating_mul(CHARACTER),
                        None => self.read_all(arg)?,
                    };
                    within(size, MAX_VALUE, "bytes in a value")?;
                    self.read_first_level(arg)?;
                }
            }
        }
        Ok(())
    }
}
