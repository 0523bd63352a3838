//! Tokens and definitions of a Lark grammar, as far as they can have a regular expression.

use std::{collections::HashMap, fmt};

use super::GrammarError;

/// Terminals that `%import common.NAME` defines, as in Lark.
const COMMON: [(&str, &str); 25] = [
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[a-fA-F0-9]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", r"[+-]?[0-9]+"),
    ("DECIMAL", r"[0-9]+\.[0-9]*|\.[0-9]+"),
    ("_EXP", "[eE][+-]?[0-9]+"),
    ("FLOAT", r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"),
    ("SIGNED_FLOAT", r"[+-]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"),
    ("NUMBER", r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ("SIGNED_NUMBER", r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ("ESCAPED_STRING", r#""(?:[^"\\\n]|\\.)*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(?:\r?\n)+"),
    ("SH_COMMENT", r"\#[^\n]*"),
    ("CPP_COMMENT", r"//[^\n]*"),
    ("C_COMMENT", r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/"),
    ("SQL_COMMENT", r"--[^\n]*"),
];

/// Symbols, each of which is a token.
const SYMBOLS: &str = ":|()[]{},.+-*?!~&=";

/// Returns the names of the terminals that a grammar can import.
pub(super) fn common_names() -> String {
    COMMON.map(|(name, _)| name).join(", ")
}

/// Token of a Lark grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LarkToken {
    Name(String),
    /// Text of a string literal.
    Text {
        text: String,
        is_caseless: bool,
    },
    /// Regular expression in a group.
    Regex(String),
    Number(u32),
    Symbol(char),
    /// `..`
    Range,
    /// `->`
    Arrow,
    /// Word after `%`.
    Directive(String),
    /// End of a line.
    Line,
}

impl fmt::Display for LarkToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "the name {name}"),
            Self::Text { text, .. } => write!(f, "{text:?}"),
            Self::Regex(_) => f.write_str("a regular expression"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Symbol(symbol) => write!(f, "{symbol:?}"),
            Self::Range => f.write_str("\"..\""),
            Self::Arrow => f.write_str("\"->\""),
            Self::Directive(word) => write!(f, "%{word}"),
            Self::Line => f.write_str("the end of a line"),
        }
    }
}

/// Definitions of a grammar.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    /// Tokens of each rule and terminal.
    pub(super) bodies: HashMap<String, Vec<LarkToken>>,
    /// Tokens of texts that may stand between terminals.
    pub(super) ignored: Vec<Vec<LarkToken>>,
}

/// Reads the definitions of a grammar.
///
/// # Errors
/// The source is malformed, or has statements and attributes without a regular expression.
pub(super) fn read_definitions(source: &str) -> Result<Definitions, GrammarError> {
    let mut definitions = Definitions::default();
    for statement in statements(tokens(source)?) {
        definitions.add(statement)?;
    }
    Ok(definitions)
}

impl Definitions {
    fn add(&mut self, statement: Vec<LarkToken>) -> Result<(), GrammarError> {
        use LarkToken::{Directive, Name, Number, Symbol};
        // A prefix of a rule has no effect on its texts. There may be any number of them.
        let prefixes = statement.iter().take_while(|token| matches!(token, Symbol('?' | '!'))).count();
        match &statement[prefixes..] {
            [Directive(word), body @ ..] if word == "ignore" => {
                self.ignored.push(body.to_vec());
                Ok(())
            }
            [Directive(word), rest @ ..] if word == "import" => self.import(rest),
            [Directive(word), ..] => {
                Err(GrammarError::unsupported(format!("%{word}"), "it has no regular expression"))
            }
            [Name(name), Symbol('.'), Symbol('-'), Number(_), Symbol(':'), body @ ..]
            | [Name(name), Symbol('.'), Number(_), Symbol(':'), body @ ..]
            | [Name(name), Symbol(':'), body @ ..] => self.define(name, body.to_vec()),
            [Name(name), Symbol(found), ..] => {
                Err(GrammarError::unusable(format!("expected ':' after the name {name}, found {found:?}")))
            }
            [other, ..] => Err(GrammarError::unusable(format!("expected a rule, found {other}"))),
            [] => Ok(()),
        }
    }

    fn define(&mut self, name: &str, body: Vec<LarkToken>) -> Result<(), GrammarError> {
        match self.bodies.insert(name.to_owned(), body) {
            None => Ok(()),
            Some(_) => Err(GrammarError::unusable(format!("the name {name} is defined twice"))),
        }
    }

    /// Reads `common.NAME`, `common.NAME -> OTHER` or `common (NAME, …)`.
    fn import(&mut self, tokens: &[LarkToken]) -> Result<(), GrammarError> {
        use LarkToken::{Arrow, Name, Symbol};
        match tokens {
            [Name(library), Symbol('.'), Name(name)] if library == "common" => self.define_common(name, name),
            [Name(library), Symbol('.'), Name(name), Arrow, Name(alias)] if library == "common" => {
                self.define_common(name, alias)
            }
            [Name(library), Symbol('('), names @ .., Symbol(')')] if library == "common" => {
                names.iter().try_for_each(|token| match token {
                    Name(name) => self.define_common(name, name),
                    _ => Ok(()),
                })
            }
            _ => {
                let found = tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                Err(GrammarError::unusable(format!("%import: expected common.NAME, found {found}")))
            }
        }
    }

    fn define_common(&mut self, name: &str, alias: &str) -> Result<(), GrammarError> {
        let Some((_, expression)) = COMMON.iter().find(|(known, _)| *known == name) else {
            return Err(GrammarError::unusable(format!("%import: common has no terminal {name}")));
        };
        self.define(alias, vec![LarkToken::Regex(format!("(?:{expression})"))])
    }
}

/// Divides tokens into statements. A statement ends with its line, unless a bracket is open or the next line begins with
/// `|`.
fn statements(tokens: Vec<LarkToken>) -> Vec<Vec<LarkToken>> {
    let mut statements = vec![Vec::new()];
    let mut depth = 0_usize;
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            LarkToken::Line => {
                while tokens.next_if_eq(&LarkToken::Line).is_some() {}
                if depth == 0 && tokens.peek() != Some(&LarkToken::Symbol('|')) {
                    statements.push(Vec::new());
                }
                continue;
            }
            LarkToken::Symbol('(' | '[' | '{') => depth += 1,
            LarkToken::Symbol(')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if let Some(last) = statements.last_mut() {
            last.push(token);
        }
    }
    statements
}

/// Divides a source into tokens, without spaces and comments.
fn tokens(source: &str) -> Result<Vec<LarkToken>, GrammarError> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        if matches!(first, ' ' | '\t' | '\r') {
            rest = &rest[1..];
            continue;
        }
        if first == '#' || rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
            continue;
        }
        let (token, length) = token(rest, first)?;
        tokens.push(token);
        rest = &rest[length..];
    }
    Ok(tokens)
}

/// Returns the first token of a text, and its length.
fn token(rest: &str, first: char) -> Result<(LarkToken, usize), GrammarError> {
    match first {
        '\n' => Ok((LarkToken::Line, 1)),
        '"' => text(rest),
        '/' => expression(rest),
        '%' => {
            let end = word_end(rest, 1, |char| char.is_ascii_alphabetic());
            Ok((LarkToken::Directive(rest[1..end].to_owned()), end))
        }
        'a'..='z' | 'A'..='Z' | '_' => {
            let end = word_end(rest, 0, |char| char.is_ascii_alphanumeric() || char == '_');
            Ok((LarkToken::Name(rest[..end].to_owned()), end))
        }

        '0'..='9' => {
            let end = word_end(rest, 0, |char| char.is_ascii_digit());
            let number = rest[..end].parse();
            let number = number.map_err(|_| {
                GrammarError::unusable(format!("expected a smaller number than {}", &rest[..end]))
            })?;
            Ok((LarkToken::Number(number), end))
        }
        '-' if rest.starts_with("->") => Ok((LarkToken::Arrow, 2)),
        '.' if rest.starts_with("..") => Ok((LarkToken::Range, 2)),
        symbol if SYMBOLS.contains(symbol) => Ok((LarkToken::Symbol(symbol), 1)),
        other => Err(GrammarError::unusable(format!(
            "expected a name, a string or a regular expression, found {other:?}"
        ))),
    }
}

/// Returns the end of the word that begins at `from`.
fn word_end(rest: &str, from: usize, is_inside: fn(char) -> bool) -> usize {
    rest[from..].find(|char| !is_inside(char)).map_or(rest.len(), |end| from + end)
}

/// Returns the length of a literal with its delimiters, between which a backslash escapes one character.
fn literal_length(rest: &str, what: &str) -> Result<usize, GrammarError> {
    let delimiter = rest.as_bytes().first();
    let mut is_escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            b'\n' => break,
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            _ if Some(&byte) == delimiter => return Ok(at + 1),
            _ => {}
        }
    }
    Err(GrammarError::unusable(format!("expected the end of a {what} on its line")))
}

/// Reads a string literal, whose escapes are those of JSON.
fn text(rest: &str) -> Result<(LarkToken, usize), GrammarError> {
    let length = literal_length(rest, "string")?;
    let literal = &rest[..length];
    let text = serde_json::from_str(literal);
    let text = text.map_err(|_| {
        GrammarError::unusable(format!("expected a string with JSON's escapes, found {literal}"))
    })?;
    let is_caseless = rest[length..].starts_with('i');
    Ok((LarkToken::Text { text, is_caseless }, length + usize::from(is_caseless)))
}

/// Reads a regular expression between slashes, and its flags.
fn expression(rest: &str) -> Result<(LarkToken, usize), GrammarError> {
    let length = literal_length(rest, "regular expression")?;
    let expression = rest[1..length - 1].replace("\\/", "/");
    let flags = rest[length..].find(|char| !"imslux".contains(char)).unwrap_or(rest.len() - length);
    let kept: String = rest[length..length + flags].chars().filter(|flag| "ims".contains(*flag)).collect();
    if rest[length..length + flags].contains('x') {
        return Err(GrammarError::unusable("expected a regular expression without the flag x"));
    }
    Ok((LarkToken::Regex(format!("(?{kept}:{expression})")), length + flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_terminals_are_expressions() {
        for (name, expression) in COMMON {
            let parsed = llguidance::derivre::RegexBuilder::new().mk_regex(expression);
            assert!(parsed.is_ok(), "{name}");
        }
    }

    #[test]
    fn statements_end_with_their_lines() {
        let found = statements(tokens("a: b\n | c # d\n\n(e\nf)\n").unwrap());
        let lengths: Vec<usize> = found.iter().map(Vec::len).collect();
        assert_eq!(lengths, [5, 4, 0]);
    }

    #[test]
    fn literals_keep_their_meaning() {
        let token = |source: &str| tokens(source).unwrap().remove(0);
        let text = |text: &str, is_caseless| LarkToken::Text { text: text.to_owned(), is_caseless };
        assert_eq!(token(r#""a\n\"b""#), text("a\n\"b", false));
        assert_eq!(token(r#""a"i"#), text("a", true));
        assert_eq!(token(r"/a\/b\\/is"), LarkToken::Regex(r"(?is:a/b\\)".to_owned()));
        assert!(tokens("/a/x").is_err() && tokens("\"\\x41\"").is_err() && tokens("99999999999").is_err());
    }
}
