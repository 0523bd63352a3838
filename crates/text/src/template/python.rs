//! Differences between Jinja in Python and minijinja: JSON, whitespace, dates, refusals.

use std::io::{self, Write};

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, ValueKind},
};
use narthex_spec::Date;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::{
    REFUSAL,
    growth::MAX_INDENT,
    large_integer::{self, template_value},
    limits,
    message::escaped_json,
    origin::{self, Escaper, Read, RenderedPrompt},
};
use crate::exact_json::ExactJson;

/// Prefix of errors that a template raises with `raise_exception`.
const RAISED: &str = "raised: ";

/// Maximum number of characters of a message of `raise_exception`.
const MAX_MESSAGE: usize = 1000;

/// `raise_exception(message)`.
pub(super) fn raise(message: String) -> Result<Value, Error> {
    let message: String = RenderedPrompt::new(&message).text().chars().take(MAX_MESSAGE).collect();
    Err(Error::new(REFUSAL, format!("{RAISED}{message}")))
}

/// Returns the message of an error that a template raised with `raise_exception`.
pub(super) fn refusal(error: &Error) -> Option<String> {
    let detail = error.detail().filter(|_| error.kind() == REFUSAL)?;
    detail.strip_prefix(RAISED).map(str::to_owned)
}

/// Returns true if a character is white space for Python's `str.isspace`.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// `text | trim` and `text | trim(characters)`.
pub(super) fn trim(text: Value, characters: Option<String>) -> String {
    let text = text.as_str().map_or_else(|| text.to_string(), str::to_owned);
    text.trim_matches(trimmed(characters.as_deref())).to_owned()
}

/// Returns a predicate that is true for characters, marked or not, of a set; the default is white space.
fn trimmed(set: Option<&str>) -> impl Fn(char) -> bool {
    move |c| set.map_or_else(|| is_space(origin::plain_char(c)), |set| set.contains(origin::plain_char(c)))
}

/// Calls one of Python's methods on strings, lists and dictionaries.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let read = match name {
        "get" | "items" | "keys" | "values" => Read::FirstLevel,
        "split" | "splitlines" => Read::Characters,
        _ => Read::Text,
    };

    let all = [std::slice::from_ref(value), args].concat();
    limits::call_method(state, name, read, &all, |state, all| {
        let Some((value, args)) = all.split_first() else { return Ok(Value::UNDEFINED) };
        let set = args.first().and_then(Value::as_str);
        let strips = set.is_some() == (args.len() == 1) && args.len() <= 1;
        match (value.as_str(), name) {
            (Some(text), "strip") if strips => Ok(text.trim_matches(trimmed(set)).into()),
            (Some(text), "lstrip") if strips => Ok(text.trim_start_matches(trimmed(set)).into()),
            (Some(text), "rstrip") if strips => Ok(text.trim_end_matches(trimmed(set)).into()),
            (Some(text), "split") if args.is_empty() => {
                Ok(text.split(is_space).filter(|word| !word.is_empty()).map(Value::from).collect())
            }
            _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
        }
    })
}

/// `value is sequence`: values with a length and an index, which in Python include strings and dictionaries.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
}

/// `value is iterable`.
pub(super) fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

/// `text | fromjson`.
pub(super) fn from_json(text: String) -> Result<Value, Error> {
    let value = ExactJson::parse(RenderedPrompt::new(&text).text())
        .map_err(|error| Error::new(ErrorKind::BadSerialization, format!("fromjson: {error}")))?;
    Ok(template_value(&escaped_json(value.tree().root(), &Escaper::default())?))
}

/// `value | tojson(indent, ensure_ascii, separators, sort_keys)` as Python's `json.dumps` writes it.
pub(super) fn to_json(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: expected two separators")),
    };
    let mut json = serde_json::to_value(&value).map_err(|error| not_serialised(&error))?;
    if sort {
        json.sort_all_objects();
    }
    let indent = indent.map(|width| " ".repeat(width.min(MAX_INDENT)));
    let python = Python { item, key, indent, ascii, depth: 0, filled: false };
    let text = formatted(&large_integer::written(&json), python)?;
    Ok(Value::from_safe_string(text))
}

/// Returns JSON as Python's `json.dumps` writes it by default.
pub(super) fn json_text(value: &impl Serialize) -> Result<String, Error> {
    let python = Python {
        item: ", ".to_owned(),
        key: ": ".to_owned(),
        indent: None,
        ascii: false,
        depth: 0,
        filled: false,
    };
    formatted(value, python)
}

fn formatted(value: &impl Serialize, python: Python) -> Result<String, Error> {
    let mut bytes = Vec::new();
    value
        .serialize(&mut Serializer::with_formatter(&mut bytes, python))
        .map_err(|error| not_serialised(&error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn not_serialised(error: &serde_json::Error) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("tojson: {error}"))
}

/// Formatter with the layout, numbers and escapes of Python's `json.dumps`.
struct Python {
    /// Separator between values.
    item: String,
    /// Separator between a key and its value.
    key: String,
    /// Indentation of a level; `None` keeps everything on one line.
    indent: Option<String>,
    ascii: bool,
    depth: usize,
    /// `true` if the current container has elements.
    filled: bool,
}

impl Python {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(writer)?;
        }
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.line(writer)
    }

    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }
}

impl Formatter for Python {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let short = format!("{value:e}");
        let (digits, exponent) = short.split_once('e').unwrap_or((&short, "0"));
        match exponent.parse::<i32>().unwrap_or(0) {
            -4..16 => write!(writer, "{value:?}"),
            exponent => {
                let sign = if exponent < 0 { '-' } else { '+' };
                write!(writer, "{digits}e{sign}{:02}", exponent.unsigned_abs())
            }
        }
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        if !self.ascii {
            return writer.write_all(text.as_bytes());
        }
        for c in text.chars() {
            let mut units = [0; 2];
            match c {
                // Spelled characters are decoded at the end of the rendering.
                '\0'..='\x7e' | origin::ESCAPE..='\u{fdef}' => write!(writer, "{c}")?,
                _ => {
                    c.encode_utf16(&mut units).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?
                }
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
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

/// `strftime_now(format)` for a date, at midnight.
pub(super) fn strftime(format: &str, date: Date) -> Result<String, Error> {
    let format = origin::plain(format);
    let Date { year, month, day } = date;
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

/// Returns the day of the week, 0 for Sunday, by Sakamoto's rule.
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
    use minijinja::value::Serde;

    use super::*;

    #[test]
    fn dates() {
        let check = |format, expected: &str| {
            assert_eq!(strftime(format, Date { year: 2026, month: 11, day: 21 }).unwrap(), expected)
        };
        check("%Y-%m-%d", "2026-11-21");
        check("%a %d %B %y, 100%%", "Sat 21 November 26, 100%");
        assert!(strftime("%Q", Date { year: 2026, month: 1, day: 1 }).is_err());
    }

    #[test]
    fn json_is_that_of_python() {
        let check = |json: &str, options: Vec<(&str, Value)>, expected: &str| {
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            let options = Kwargs::from_iter(options);
            assert_eq!(to_json(Value::from(Serde(value)), options).unwrap().to_string(), expected, "{json}");
        };
        let nested = r#"{"b":[1,{}],"a":{"c":[],"d":null}}"#;
        check(nested, vec![], r#"{"b": [1, {}], "a": {"c": [], "d": null}}"#);
        check(
            nested,
            vec![("indent", Value::from(1)), ("sort_keys", Value::from(true))],
            "{\n \"a\": {\n  \"c\": [],\n  \"d\": null\n },\n \"b\": [\n  1,\n  {}\n ]\n}",
        );
        check(
            nested,
            vec![("separators", Value::from(vec![",", ":"]))],
            r#"{"b":[1,{}],"a":{"c":[],"d":null}}"#,
        );
        let large = r#"[18446744073709551616, {"a": -9223372036854775809}]"#;
        let value = from_json(large.to_owned()).unwrap();
        assert_eq!(to_json(value, Kwargs::from_iter([] as [(&str, Value); 0])).unwrap().to_string(), large);
        let floats = "[1e+16, 1000000000000000.0, 0.0001, 1e-05, 1.5, -0.0, 1.25e-100, 9.5e+300]";
        check("[1e16,1e15,1e-4,1e-5,1.5,-0.0,1.25e-100,9.5e300]", vec![], floats);
        check("\"<é🙂\u{7f}\\n\"", vec![], "\"<é🙂\u{7f}\\n\"");
        check(
            "\"<é🙂\u{7f}\\n\"",
            vec![("ensure_ascii", Value::from(true))],
            "\"<\\u00e9\\ud83d\\ude42\\u007f\\n\"",
        );
        let ascii = vec![("ensure_ascii", Value::from(true))];
        check("\"\u{fdd0}\u{fdcf}\"", ascii, "\"\u{fdd0}\\ufdcf\"");
    }
}
