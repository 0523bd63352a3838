//! Growth of text and containers by the functions of templates.

use std::borrow::Cow;

use minijinja::{Error, Value, value::ValueKind};

use super::size::{ELEMENT, ESCAPED, Size, elements};

/// Maximum number of bytes of a formatted number without its width and precision: 309 digits and their separators.
const NUMBER: usize = 512;

/// Maximum number of bytes of a field of a date.
const DATE_FIELD: usize = 32;

/// Width of an indentation of lines if none is stated.
const DEFAULT_INDENT: usize = 4;

/// Maximum width of an indentation of JSON.
pub(super) const MAX_INDENT: usize = 64;

/// Returns a value as text.
fn text(value: &Value) -> Cow<'_, str> {
    value.as_str().map_or_else(|| Cow::Owned(value.to_string()), Cow::Borrowed)
}

/// Returns an upper bound on the bytes of a value as text.
fn text_bytes(value: &Value) -> Result<usize, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => Size::of(value)?.text_bytes(),
        _ => Ok(text(value).len()),
    }
}

/// Returns an upper bound on the bytes by which a function's result exceeds its arguments, which have the form that the
/// function receives.
pub(super) fn growth(name: &str, args: &[Value]) -> Result<usize, Error> {
    let Some((subject, rest)) = args.split_first() else { return Ok(0) };
    let mut options = Vec::new();
    for arg in rest {
        match arg.is_kwargs() {
            true => options.extend(elements(arg)?.filter_map(|name| arg.get_item(&name).ok())),
            false => options.push(arg.clone()),
        }
    }

    let number = options.iter().filter_map(Value::as_usize).max().unwrap_or(0);
    Ok(match name {
        "join" => {
            let items = subject.as_str().map_or(elements(subject)?.count(), str::len);
            items.saturating_mul(longest(&options)?)
        }
        "replace" => match options.as_slice() {
            [from, to, ..] => text(subject).matches(&*text(from)).count().saturating_mul(text_bytes(to)?),
            _ => 0,
        },
        "indent" => (text(subject).matches('\n').count() + 1).saturating_mul(number.max(DEFAULT_INDENT)),
        "format" => {
            let format = text(subject);
            let fields = format.matches(['%', '{']).count();
            let padding = widths(&format).saturating_mul(char::MAX.len_utf8());
            padding.saturating_add(fields.saturating_mul(longest(&options)?.max(NUMBER)))
        }
        "tojson" => {
            let mut separators = 0usize;
            for option in &options {
                for separator in elements(option)? {
                    separators = separators.saturating_add(text_bytes(&separator)?);
                }
            }
            let size = Size::of(subject)?;
            let indent = number.min(MAX_INDENT) * size.depth;
            size.values.saturating_mul(indent.saturating_add(separators))
        }
        // Each character of an element passes all levels around it.
        "pprint" => {
            let size = Size::of(subject)?;
            size.values.saturating_mul(size.depth).saturating_mul(size.depth)
        }
        // Strings and lists are copied for each element. Numbers are not.
        "sum" => {
            let named = rest.iter().filter(|arg| arg.is_kwargs()).map(|named| named.get_attr("start"));
            let starts = named.collect::<Result<Vec<_>, _>>()?;
            let starts = starts.iter().chain(rest.get(1).filter(|arg| !arg.is_kwargs()));
            match starts.into_iter().any(|start| matches!(start.kind(), ValueKind::String | ValueKind::Seq)) {
                true => elements(subject)?.count().saturating_mul(Size::of(subject)?.bytes),
                false => 0,
            }
        }
        "strftime_now" => text(subject).matches('%').count().saturating_mul(DATE_FIELD),
        "batch" | "slice" => number.saturating_mul(ELEMENT),
        "fromjson" => text(subject).matches([',', '[', '{']).count().saturating_mul(ELEMENT),
        "escape" | "e" => text(subject).len().saturating_mul(ESCAPED),
        _ => 0,
    })
}

/// Returns the bytes of the longest value as text.
fn longest(values: &[Value]) -> Result<usize, Error> {
    values.iter().try_fold(0, |longest, value| Ok(text_bytes(value)?.max(longest)))
}

/// Returns an upper bound on the widths and precisions of a format string, in the style of `%` or of `str.format`. Both
/// stand before the type of a field or its closing brace.
fn widths(format: &str) -> usize {
    let ends = format.match_indices(|c| "bcdeEfFgGhilLosxX}".contains(c));
    let specs = ends.filter_map(|(end, _)| {
        format[..end].rsplit(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ',' | '_')).next()
    });
    let numbers = specs.flat_map(|spec| spec.split(['.', ',', '_'])).filter(|digits| !digits.is_empty());
    numbers.map(|digits| digits.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add)
}
