//! Where Jinja in Python differs from minijinja: JSON, whitespace, dates, refusals.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, Serde},
};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::REFUSAL;

/// Marks errors that a template raised itself.
const RAISED: &str = "raised: ";

/// `raise_exception(message)`.
pub(super) fn raise(message: String) -> Result<Value, Error> {
    Err(Error::new(REFUSAL, format!("{RAISED}{message}")))
}

/// The words of a template's own refusal.
pub(super) fn refusal(error: &Error) -> Option<String> {
    let detail = error.detail().filter(|_| error.kind() == REFUSAL)?;
    detail.strip_prefix(RAISED).map(str::to_owned)
}

/// What Python's `str.isspace` accepts and Rust's `char::is_whitespace` does not, besides.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `text | trim` and `text | trim(characters)`.
pub(super) fn trim(text: Value, characters: Option<String>) -> String {
    let text = text.as_str().map_or_else(|| text.to_string(), str::to_owned);
    match characters {
        Some(set) => text.trim_matches(|c| set.contains(c)).to_owned(),
        None => text.trim_matches(is_space).to_owned(),
    }
}

/// Python's methods on strings, lists and dictionaries.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let (Some(text), true) = (value.as_str(), args.is_empty()) {
        match name {
            "strip" => return Ok(text.trim_matches(is_space).into()),
            "lstrip" => return Ok(text.trim_start_matches(is_space).into()),
            "rstrip" => return Ok(text.trim_end_matches(is_space).into()),
            "split" => {
                return Ok(text.split(is_space).filter(|word| !word.is_empty()).map(Value::from).collect());
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// `text | fromjson`.
pub(super) fn from_json(text: String) -> Result<Value, Error> {
    let value: serde_json::Value = serde_json::from_str(&text)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, format!("fromjson: {error}")))?;
    Ok(Value::from(Serde(value)))
}

/// `value | tojson(indent, ensure_ascii, sort_keys)` as Python's `json.dumps` writes it.
pub(super) fn to_json(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let _: Option<Value> = options.get("separators")?;
    options.assert_all_used()?;
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, format!("tojson: {error}"));
    let mut json = serde_json::to_value(&value).map_err(failed)?;
    if sort {
        json.sort_all_objects();
    }
    let mut bytes = Vec::new();
    match indent {
        Some(width) => {
            let spaces = " ".repeat(width.min(64));
            let inner = PrettyFormatter::with_indent(spaces.as_bytes());
            json.serialize(&mut Serializer::with_formatter(&mut bytes, Python { inner, ascii }))
        }
        None => json.serialize(&mut Serializer::with_formatter(&mut bytes, Python { inner: Spaced, ascii })),
    }
    .map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Value::from_safe_string(text))
}

/// One line, with a space after each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Numbers and non-ASCII characters as Python writes them, around another layout.
struct Python<F> {
    inner: F,
    ascii: bool,
}

impl<F: Formatter> Formatter for Python<F> {
    fn write_f64<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, value: f64) -> std::io::Result<()> {
        let text = serde_json::Number::from_f64(value).map_or_else(|| "null".to_owned(), |n| n.to_string());
        let Some((digits, exponent)) = text.split_once('e') else { return writer.write_all(text.as_bytes()) };
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ('-', rest),
            None => ('+', exponent.trim_start_matches('+')),
        };
        write!(writer, "{digits}e{sign}{exponent:0>2}")
    }

    fn write_string_fragment<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        text: &str,
    ) -> std::io::Result<()> {
        if !self.ascii {
            return writer.write_all(text.as_bytes());
        }
        for c in text.chars() {
            let mut units = [0; 2];
            match c {
                '\0'..='\x7f' => write!(writer, "{c}")?,
                _ => {
                    c.encode_utf16(&mut units).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?
                }
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.inner.begin_array(writer)
    }

    fn end_array<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.inner.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.inner.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.inner.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.inner.begin_object(writer)
    }

    fn end_object<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.inner.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.inner.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.inner.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.inner.end_object_value(writer)
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// `strftime_now(format)` for a day; the time of day is midnight.
pub(super) fn strftime(format: &str, (year, month, day): (i64, u8, u8)) -> Result<String, Error> {
    let month_name = MONTHS[usize::from(month.clamp(1, 12)) - 1];
    let weekday = WEEKDAYS[weekday(year, month, day)];
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => text.push_str(&year.to_string()),
            Some('y') => text.push_str(&format!("{:02}", year.rem_euclid(100))),
            Some('m') => text.push_str(&format!("{month:02}")),
            Some('d') => text.push_str(&format!("{day:02}")),
            Some('B') => text.push_str(month_name),
            Some('b') => text.push_str(&month_name[..3]),
            Some('A') => text.push_str(weekday),
            Some('a') => text.push_str(&weekday[..3]),
            Some('H' | 'M' | 'S') => text.push_str("00"),
            Some('%') => text.push('%'),
            other => {
                let found = other.map(String::from).unwrap_or_default();
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now: unknown %{found}"),
                ));
            }
        }
    }
    Ok(text)
}

/// Day of the week, 0 for Sunday, by Sakamoto's rule.
fn weekday(year: i64, month: u8, day: u8) -> usize {
    const OFFSETS: [i64; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
    let month = usize::from(month.clamp(1, 12));
    let year = if month < 3 { year - 1 } else { year };
    let sum = year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + OFFSETS[month - 1]
        + i64::from(day);
    usize::try_from(sum.rem_euclid(7)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let check = |format, expected: &str| assert_eq!(strftime(format, (2026, 11, 21)).unwrap(), expected);
        check("%Y-%m-%d", "2026-11-21");
        check("%a %d %B %y, 100%%", "Sat 21 November 26, 100%");
        assert!(strftime("%Q", (2026, 1, 1)).is_err());
    }
}
