//! Size of the values of a template.

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

use super::origin::is_namespace;

/// Maximum number of bytes of one value, with everything in it.
pub(super) const MAX_VALUE: usize = 64 << 20;

/// Maximum depth of containers. `serde_json` reads up to 128.
const MAX_DEPTH: usize = 160;

/// Number of bytes counted for an element of a container.
pub(super) const ELEMENT: usize = 64;

/// Maximum number of bytes for one byte of a string if its container is written as text.
pub(super) const ESCAPED: usize = 6;

fn over(what: &str, limit: usize) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("expected {what} of at most {limit}, found more"))
}

/// Fails if a number is over its limit.
pub(super) fn within(found: usize, limit: usize, what: &str) -> Result<(), Error> {
    if found <= limit { Ok(()) } else { Err(over(what, limit)) }
}

/// Size of a value, with everything in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) bytes: usize,
    /// Number of values: the value itself, and the keys and elements in it.
    pub(super) values: usize,
    /// Number of nested containers.
    pub(super) depth: usize,
}

impl Size {
    /// Returns an upper bound on the bytes of a container of this size as text.
    pub(super) fn text_bytes(self) -> Result<usize, Error> {
        let bytes = self.bytes.saturating_mul(ESCAPED);
        within(bytes, MAX_VALUE, "bytes of text")?;
        Ok(bytes)
    }

    /// Measures a value.
    pub(super) fn of(value: &Value) -> Result<Self, Error> {
        let mut size = Self { bytes: 0, values: 0, depth: 0 };
        let mut pending = vec![(value.clone(), 0)];
        while let Some((value, depth)) = pending.pop() {
            if depth > 0 && is_namespace(&value) {
                return Err(stored());
            }
            within(depth, MAX_DEPTH, "nested containers")?;
            size.values += 1;
            size.depth = size.depth.max(depth);
            size.bytes += ELEMENT + value.as_str().map_or(0, str::len);
            let pairs = value.kind() == ValueKind::Map;
            for item in elements(&value)? {
                if pairs {
                    pending.push((value.get_item(&item).unwrap_or_default(), depth + 1));
                }
                pending.push((item, depth + 1));
                within(size.bytes + pending.len() * ELEMENT, MAX_VALUE, "bytes in a value")?;
            }
            within(size.bytes, MAX_VALUE, "bytes in a value")?;
        }
        Ok(size)
    }
}

/// Returns the elements of a container, or nothing for other values.
pub(super) fn elements(value: &Value) -> Result<impl Iterator<Item = Value>, Error> {
    let is_container = matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable);
    let items = if is_container { Some(value.try_iter()?) } else { None };
    Ok(items.into_iter().flatten())
}

/// Returns the error of a namespace in another value.
pub(super) fn stored() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a namespace cannot be stored in another value")
}
