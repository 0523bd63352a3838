//! Conversion of Python's literals to JSON: strings, numbers, `True`, `False`, `None`, lists and dictionaries.

use serde_json::{Map, Number, Value};

/// Maximum depth of containers.
const MAX_DEPTH: usize = 64;

/// Returns the value of a text that is one literal.
pub(super) fn parse(text: &str) -> Option<Value> {
    let mut reader = LiteralReader { rest: text.trim() };
    let value = reader.value(0)?;
    reader.skip();
    reader.rest.is_empty().then_some(value)
}

/// Returns the JSON of a literal that was cut off: an open string if it is a string, otherwise its text.
pub(super) fn beginning(text: &str) -> String {
    let text = text.trim_start();
    match text.chars().next() {
        Some(quote @ ('\'' | '"')) => open_string(&LiteralReader { rest: text }.characters(quote).0),
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

struct LiteralReader<'a> {
    rest: &'a str,
}

impl<'a> LiteralReader<'a> {
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

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.skip();
        if depth > MAX_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            quote @ ('\'' | '"') => self.string(quote).map(Value::String),
            '[' => self.items('[', ']', depth).map(Value::Array),
            '(' => self.items('(', ')', depth).map(Value::Array),
            '{' => self.pairs(depth),
            _ => self.word(),
        }
    }

    fn items(&mut self, open: char, close: char, depth: usize) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        self.rest = self.rest.strip_prefix(open)?;
        let close = close.to_string();
        while !self.skip_if(&close) {
            if !items.is_empty() && !self.skip_if(",") {
                return None;
            }
            items.push(self.value(depth + 1)?);
        }
        Some(items)
    }

    fn pairs(&mut self, depth: usize) -> Option<Value> {
        let mut pairs = Map::new();
        self.rest = self.rest.strip_prefix('{')?;
        while !self.skip_if("}") {
            if !pairs.is_empty() && !self.skip_if(",") {
                return None;
            }
            self.skip();
            let quote = self.rest.chars().next().filter(|c| "'\"".contains(*c))?;
            let key = self.string(quote)?;
            if !self.skip_if(":") {
                return None;
            }
            pairs.insert(key, self.value(depth + 1)?);
        }
        Some(Value::Object(pairs))
    }

    fn word(&mut self) -> Option<Value> {
        let end =
            self.rest.find(|c: char| c.is_whitespace() || ",]}):".contains(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            _ => serde_json::from_str::<Number>(word).ok().map(Value::Number),
        }
    }

    /// Returns the characters of the string at the start, and the text after its closing quote; `None` if the string
    /// has no end.
    fn characters(&self, quote: char) -> (String, Option<&'a str>) {
        let mut text = String::new();
        let mut chars = self.rest.chars();
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

    fn string(&mut self, quote: char) -> Option<String> {
        let (text, rest) = self.characters(quote);
        self.rest = rest?;
        Some(text)
    }
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
        let check = |text: &str, expect: Value| assert_eq!(parse(text), Some(expect), "{text}");
        check("'a\\'b\\n\\u00e9\\q'", json!("a'b\né\\q"));
        check("\"it's\"", json!("it's"));
        check("-1.5e3", json!(-1500.0));
        check("[1, 'a', [True, None], {'k': (1, 2)}]", json!([1, "a", [true, null], {"k": [1, 2]}]));
        check("[]", json!([]));
        check("{}", json!({}));
        for bad in ["", "f(x)", "'a", "[1", "[1 2]", "{1: 2}", "1 2", &"[".repeat(1000)] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let cut = [r"'a\'b\n\u00", r#" "it's \x"#, "", "12 ", "[1, 2", "Tru"].map(beginning);
        assert_eq!(cut, [r#""a'b\n"#, r#""it's "#, "", "12", "[1, 2", "Tru"]);
        assert_eq!((length("'a,)', 1"), length("[1, 2])"), length("'a,")), (Some(5), Some(6), None));
        let places = ["a='b", "a=['b', \"c'", "a='b\\'", "a='b'", "a=[1", "a='b', c='"].map(ends_in_string);
        assert_eq!(places, [true, true, true, false, false, false]);
    }
}
