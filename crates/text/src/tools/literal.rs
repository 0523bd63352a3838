//! Conversion of Python's literals to JSON: strings, numbers, `True`, `False`, `None`, lists and dictionaries.

use serde_json::{Number, Value};

use crate::exact_json::ExactJson;

/// Maximum depth of containers, which is that of JSON.
const MAX_DEPTH: usize = 127;

/// Returns the value of a text that is JSON or a literal of Python.
pub(super) fn value(text: &str) -> Option<ExactJson> {
    ExactJson::parse(text).ok().or_else(|| parse(text))
}

/// Returns the value of a text that is one literal.
fn parse(text: &str) -> Option<ExactJson> {
    let mut reader = LiteralReader { rest: text.trim(), json: String::new() };
    reader.value(0)?;
    reader.skip();
    if !reader.rest.is_empty() {
        return None;
    }
    ExactJson::parse(&reader.json).ok()
}

/// Returns true if a text without the end of a literal may be the beginning of one.
pub(super) fn may_continue(text: &str) -> bool {
    let mut reader = LiteralReader { rest: text, json: String::new() };
    let _ = reader.value(0);
    reader.skip();
    reader.rest.is_empty()
}

/// Returns the JSON of a literal that was cut off: an open string if it is a string, otherwise its text.
pub(super) fn beginning(text: &str) -> String {
    let text = text.trim_start();
    match text.chars().next() {
        Some(quote @ ('\'' | '"')) => open_string(&characters(text, quote).0),
        _ => text.trim_end().to_owned(),
    }
}

/// Returns a text as a JSON string without its closing quote.
pub(super) fn open_string(text: &str) -> String {
    let mut json = Value::from(text).to_string();
    json.pop();
    json
}

/// Returns the length of the literal at the start of the text: up to a comma or closing parenthesis outside of it.
/// Returns `None` if neither is there yet.
pub(super) fn length(text: &str) -> Option<usize> {
    match end(text) {
        LiteralEnd::At(length) => Some(length),
        LiteralEnd::InString | LiteralEnd::Missing => None,
    }
}

/// Returns true if the text ends inside of a string of the literal at its start.
pub(super) fn ends_in_string(text: &str) -> bool {
    end(text) == LiteralEnd::InString
}

/// End of a literal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LiteralEnd {
    /// The literal ends before this byte.
    At(usize),
    /// The text ends inside a string of the literal.
    InString,
    /// The text ends before the literal does.
    Missing,
}

fn end(text: &str) -> LiteralEnd {
    let mut depth = 0usize;
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) => {
                if c == open && !escaped {
                    quote = None;
                }
                escaped = c == '\\' && !escaped;
            }
            None => match c {
                '\'' | '"' => quote = Some(c),
                ',' | ')' if depth == 0 => return LiteralEnd::At(at),
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            },
        }
    }
    if quote.is_some() { LiteralEnd::InString } else { LiteralEnd::Missing }
}

/// Reader of a literal. If it fails, the rest begins with the character that is wrong, and is empty if more text is needed.
struct LiteralReader<'a> {
    rest: &'a str,
    /// JSON of what was read.
    json: String,
}

impl LiteralReader<'_> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn skip_if(&mut self, text: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        self.skip();
        if depth > MAX_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            quote @ ('\'' | '"') => self.string(quote),
            '[' => self.items(']', depth),
            '(' => self.items(')', depth),
            '{' => self.pairs(depth),
            _ => self.word(),
        }
    }

    fn items(&mut self, close: char, depth: usize) -> Option<()> {
        self.rest = &self.rest[1..];
        self.json.push('[');
        let close = close.to_string();
        let mut is_first = true;
        while !self.skip_if(&close) {
            self.comma(&mut is_first)?;
            self.value(depth + 1)?;
        }
        self.json.push(']');
        Some(())
    }

    fn pairs(&mut self, depth: usize) -> Option<()> {
        self.rest = &self.rest[1..];
        self.json.push('{');
        let mut is_first = true;
        while !self.skip_if("}") {
            self.comma(&mut is_first)?;
            self.skip();
            let quote = self.rest.chars().next().filter(|c| "'\"".contains(*c))?;
            self.string(quote)?;
            if !self.skip_if(":") {
                return None;
            }
            self.json.push(':');
            self.value(depth + 1)?;
        }
        self.json.push('}');
        Some(())
    }

    /// Reads the comma before an element, unless it is the first.
    fn comma(&mut self, is_first: &mut bool) -> Option<()> {
        if !std::mem::take(is_first) {
            self.skip_if(",").then_some(())?;
            self.json.push(',');
        }
        Some(())
    }

    fn word(&mut self) -> Option<()> {
        let end =
            self.rest.find(|c: char| c.is_whitespace() || ",]}):".contains(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let json = match word {
            "True" | "true" => Some("true"),
            "False" | "false" => Some("false"),
            "None" | "null" => Some("null"),
            _ => serde_json::from_str::<Number>(word).ok().map(|_| word),
        };
        if json.is_some() || rest.is_empty() && may_be_word(word) {
            self.rest = rest;
        }
        self.json.push_str(json?);
        Some(())
    }

    fn string(&mut self, quote: char) -> Option<()> {
        let (text, rest) = characters(self.rest, quote);
        self.rest = rest.unwrap_or_default();
        rest?;
        self.json.push_str(&Value::from(text).to_string());
        Some(())
    }
}

/// Returns true if a number, a truth value or none may begin like this.
fn may_be_word(text: &str) -> bool {
    let words = ["True", "true", "False", "false", "None", "null"];
    words.iter().any(|word| word.starts_with(text))
        || text.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c))
}

/// Returns the characters of the string at the start of a text, and the text after its closing quote; `None` if the string
/// has no end.
fn characters(string: &str, quote: char) -> (String, Option<&str>) {
    let mut text = String::new();
    let mut chars = string.chars();
    chars.next();
    while let Some(c) = chars.next() {
        match c {
            c if c == quote => return (text, Some(chars.as_str())),
            '\\' => {
                if escaped(&mut chars, &mut text).is_none() {
                    break;
                }
            }
            c => text.push(c),
        }
    }
    (text, None)
}

/// Appends the character of an escape, after its backslash. Returns `None` if the escape is incomplete.
fn escaped(chars: &mut std::str::Chars<'_>, text: &mut String) -> Option<()> {
    match chars.next()? {
        'n' => text.push('\n'),
        't' => text.push('\t'),
        'r' => text.push('\r'),
        'b' => text.push('\u{8}'),
        'f' => text.push('\u{c}'),
        '\n' => {}
        'x' => text.push(code(chars, 2)?),
        'u' => text.push(code(chars, 4)?),
        'U' => text.push(code(chars, 8)?),
        c @ ('\\' | '\'' | '"') => text.push(c),
        other => text.extend(['\\', other]),
    }
    Some(())
}

fn code(chars: &mut std::str::Chars<'_>, digits: usize) -> Option<char> {
    let text: String = chars.by_ref().take(digits).collect();
    (text.len() == digits).then(|| u32::from_str_radix(&text, 16).ok().and_then(char::from_u32)).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_become_json() {
        let check = |text: &str, expect: Value| assert_eq!(parse(text), Some(expect.into()), "{text}");
        check("'a\\'b\\n\\u00e9\\q'", json!("a'b\né\\q"));
        check("\"it's\"", json!("it's"));
        check("-1.5e3", json!(-1500.0));
        check("[1, 'a', [True, None], {'k': (1, 2)}]", json!([1, "a", [true, null], {"k": [1, 2]}]));
        check("[]", json!([]));
        check("{}", json!({}));
        check("{'a': 1, 'a': 2}", json!({"a": 2}));
        let large = parse("(18446744073709551617, {'a': -18446744073709551617})").unwrap();
        assert_eq!(large.to_string(), r#"[18446744073709551617,{"a":-18446744073709551617}]"#);
        for bad in ["", "f(x)", "'a", "[1", "[1 2]", "{1: 2}", "1 2", &"[".repeat(1000)] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let cut = [r"'a\'b\n\u00", r#" "it's \x"#, "", "12 ", "[1, 2", "Tru"].map(beginning);
        assert_eq!(cut, [r#""a'b\n"#, r#""it's "#, "", "12", "[1, 2", "Tru"]);
        assert_eq!((length("'a,)', 1"), length("[1, 2])"), length("'a,")), (Some(5), Some(6), None));
        let beginnings =
            ["", " Tr", "-1.", "'a, b", "[1, {'a': (Fal", "{'a'", "[1]", "Truth", "1 2", "[1 x", "{a", "f("];
        let expect = [true, true, true, true, true, true, true, false, false, false, false, false];
        assert_eq!(beginnings.map(may_continue), expect);
        let places = ["a='b", "a=['b', \"c'", "a='b\\'", "a='b'", "a=[1", "a='b', c='"].map(ends_in_string);
        assert_eq!(places, [true, true, true, false, false, false]);
    }
}
