//! Removal of credentials from texts that are logged, printed or sent.

use std::borrow::Cow;

/// Replacement for a credential.
const HIDDEN: &str = "***";

/// Authentication schemes of an `Authorization` header, before the credential.
const SCHEMES: [&str; 2] = ["bearer ", "basic "];

/// Prefixes of tokens with the minimum number of characters after them: tokens of the hub, and of Narthex.
const TOKENS: [(&str, usize); 2] = [("hf_", 16), ("nx-", 32)];

/// Returns a text with all credentials replaced: user names and passwords of URLs (`https://user:token@host`), the values
/// in queries and fragments of URLs (`?token=value`), credentials of `Authorization` headers, tokens of the hub and API
/// keys. The time is linear in the length of the text.
pub fn redact(text: &str) -> Cow<'_, str> {
    let mut clean = String::new();
    let mut copied = 0;
    let mut at = 0;
    let mut part = Part::Prose;
    while let Some(rest) = text.get(at..)
        && let Some(c) = rest.chars().next()
    {
        let found = part.credential(rest, c);
        at += found.map_or(c.len_utf8(), |Credential { start, length }| {
            clean.push_str(text.get(copied..at + start).unwrap_or_default());
            clean.push_str(HIDDEN);
            copied = at + start + length;
            start + length
        });
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    clean.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(clean)
}

/// A range of bytes after a place in a text. It ends after that place.
#[derive(Clone, Copy)]
struct Credential {
    start: usize,
    length: usize,
}

/// The part of a text at a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Prose,
    /// Authority or path of a URL.
    Url,
    /// Query or fragment of a URL.
    Query,
}

impl Part {
    /// Returns the credential that begins at the next character, `c`, or is announced by it. The search for its end
    /// stops where another credential could be announced, so that no byte is read more than a few times.
    fn credential(&mut self, rest: &str, c: char) -> Option<Credential> {
        match c {
            ':' if rest.starts_with("://") => {
                *self = Self::Url;
                return user_information(rest);
            }
            '?' | '#' if *self == Self::Url => *self = Self::Query,
            '=' if *self == Self::Query => return query_value(rest),
            'b' | 'B' => return in_header(rest),
            'h' | 'n' => return token(rest),
            // Python's errors name the path without the host: `url: /path?token=value`.
            c if ends_url(c) && rest[c.len_utf8()..].starts_with('/') => *self = Self::Url,
            c if ends_url(c) => *self = Self::Prose,
            _ => {}
        }
        None
    }
}

/// Returns true for a character that ends a URL in a text.
fn ends_url(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | '<' | '>' | '`' | '\\')
}

/// Finds the user information of a URL from its `://`: the part of the authority before its last `@`.
fn user_information(rest: &str) -> Option<Credential> {
    let start = "://".len();
    let ends = |c: char| ends_url(c) || matches!(c, '/' | '?' | '#');
    let authority = rest.get(start..)?.split(ends).next()?;
    authority.rfind('@').map(|length| Credential { start, length })
}

/// Finds the value of a parameter from its `=`. Punctuation at the end belongs to the text around the URL.
fn query_value(rest: &str) -> Option<Credential> {
    let start = "=".len();
    let ends = |c: char| ends_url(c) || matches!(c, '&' | '#');
    let value = rest.get(start..)?.split(ends).next()?;
    let value = value.trim_end_matches([',', '.', ';', ':', ')', ']', '}']);
    (!value.is_empty()).then_some(Credential { start, length: value.len() })
}

/// Finds the credential after the scheme of an `Authorization` header.
fn in_header(rest: &str) -> Option<Credential> {
    let begins =
        |scheme: &str| rest.get(..scheme.len()).is_some_and(|text| text.eq_ignore_ascii_case(scheme));
    let start = SCHEMES.iter().find(|scheme| begins(scheme))?.len();
    let ends = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | ',' | ';');
    let word = rest.get(start..)?.split(ends).next()?;
    // In prose such as "a bearer token" a word follows; credentials have digits or are long.
    let is_credential = word.len() > 20 || word.bytes().any(|byte| byte.is_ascii_digit());
    is_credential.then_some(Credential { start, length: word.len() })
}

/// Finds a token of the hub or of Narthex from its prefix.
fn token(rest: &str) -> Option<Credential> {
    let (prefix, minimum) = TOKENS.iter().find(|(prefix, _)| rest.starts_with(prefix))?;
    let digits = rest.get(prefix.len()..)?.bytes().take_while(u8::is_ascii_alphanumeric).count();
    (digits >= *minimum).then_some(Credential { start: 0, length: prefix.len() + digits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_hidden_and_the_rest_is_kept() {
        let check = |text: &str, expect: &str| {
            assert_eq!(redact(text), expect);
            assert_eq!(redact(&redact(text)), expect, "twice");
        };
        check("https://user:token@host/path", "https://***@host/path");
        check("https://token@host:8080", "https://***@host:8080");
        check("a https://u:p@ss@h/x and http://v:w@i?q=a@b", "a https://***@h/x and http://***@i?q=***");
        check(
            "Looking in indexes: https://u:\u{e9}@h/simple, https://h/a@b",
            "Looking in indexes: https://***@h/simple, https://h/a@b",
        );
        check("\"socks5://u:p@h\"", "\"socks5://***@h\"");
        check("Authorization: Bearer abc123; x", "Authorization: Bearer ***; x");
        check("authorization: basic dXNlcjpwYXNz9", "authorization: basic ***");
        check(&format!("token hf_{} is", "a1B2".repeat(8)), "token *** is");
        check(&format!("key nx-{}.", "0123456789abcdef".repeat(3)), "key ***.");
        check(
            "GET https://h/x?a=1&X-Amz-Signature=5e%2F=7&v (403)",
            "GET https://h/x?a=***&X-Amz-Signature=***&v (403)",
        );
        check(
            "(https://h?token=a/b:c), see \"https://h/#t=u\"",
            "(https://h?token=***), see \"https://h/#t=***\"",
        );
        check("exceeded with url: /o.whl?sig=abc&v (x)", "exceeded with url: /o.whl?sig=***&v (x)");
        check("https://u:v@h/?next=https://w:x@i&t=1\nt=1", "https://***@h/?next=***&t=***\nt=1");
        for plain in [
            "",
            "no credentials",
            "a@b",
            "a?b=c",
            "https://host/@x",
            "https://host/a=b?c=&d",
            "://",
            "a bearer token is sent",
            "hf_hub",
            "nx-a",
        ] {
            check(plain, plain);
        }
    }
    /// A search that reads the rest of the text for each of these pieces takes minutes.
    #[test]
    fn long_texts_are_read_once() {
        let check = |piece: &str, hidden: &str| {
            let count = (4 << 20) / piece.len();
            assert!(redact(&piece.repeat(count)) == hidden.repeat(count), "{piece:?}");
        };
        check("x://a@b ", "x://***@b ");
        check("://", "://");
        check("bearer ", "bearer ");
        check("basic 1 ", "basic *** ");
        check("hf_", "hf_");
        check("x://?=1 ", "x://?=*** ");
        check("x://?=) ", "x://?=) ");
    }
}
