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
    let mut place = Place { part: Part::Prose, unsearched: text.len() };
    while let Some(rest) = text.get(at..)
        && let Some(c) = rest.chars().next()
    {
        let found = place.credential(rest, c);
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

/// Hides a user name and a password in a model reference, as in `hf:user:password@host/model`: the part before the last
/// `@`, if it contains a colon. A name with its scheme, such as `a:b@w8`, is not changed.
pub fn redact_reference(text: &str) -> Cow<'_, str> {
    let (prefix, rest) = text.split_at(if text.starts_with("hf:") { "hf:".len() } else { 0 });
    match rest.rsplit_once('@') {
        Some((before, after))
            if before.contains(':') && (!prefix.is_empty() || after.contains(['/', '.', ':'])) =>
        {
            Cow::Owned(format!("{prefix}{HIDDEN}@{}", redact(after)))
        }
        _ => redact(text),
    }
}

/// Hides the user information of these addresses in a text. The addresses may be malformed. Hides the part before the last
/// `@`, the password in it, and the pieces of the password, because programs divide a malformed address in different ways.
/// Hides other credentials as [`redact`] does.
pub(crate) fn redact_addresses(text: &str, addresses: &[String]) -> String {
    let mut secrets: Vec<&str> = addresses.iter().flat_map(|address| secrets(address)).collect();
    // A longer secret may contain a shorter one.
    secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
    let hidden = secrets.into_iter().fold(text.to_owned(), |text, secret| text.replace(secret, HIDDEN));
    redact(&hidden).into_owned()
}

/// Minimum number of bytes of a text that is hidden wherever it occurs. Shorter ones occur in words.
const MIN_PIECE: usize = 4;

/// Returns the texts in an address that are credentials.
fn secrets(address: &str) -> Vec<&str> {
    let Some((before, _)) = address.rsplit_once('@') else { return Vec::new() };
    let user = before.split_once("//").map_or(before, |(_, user)| user);
    // Without a password, the name of the user is a token.
    let password = user.split_once(':').map_or(user, |(_, password)| password);
    let pieces = password.split([':', '/', '?', '#', '@', ' ']).chain([password, user]);
    pieces.filter(|piece| piece.len() >= MIN_PIECE).collect()
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

/// A place in a text.
struct Place {
    part: Part,
    /// Number of bytes at the end of the text in which no user information was searched yet.
    unsearched: usize,
}

impl Place {
    /// Returns the credential that begins at the next character, `c`, or is announced by it. The search for its end
    /// stops where another credential could be announced, or is not repeated, so that no byte is read more than a few
    /// times.
    fn credential(&mut self, rest: &str, c: char) -> Option<Credential> {
        match c {
            ':' if rest.starts_with("://") => return self.user_information(rest),
            '?' | '#' if self.part == Part::Url => self.part = Part::Query,
            '=' if self.part == Part::Query => return query_value(rest),
            'b' | 'B' => return in_header(rest),
            'h' | 'n' => return token(rest),
            // Python's errors name the path without the host: `url: /path?token=value`.
            c if ends_url(c) && rest[c.len_utf8()..].starts_with('/') => self.part = Part::Url,
            c if ends_url(c) => self.part = Part::Prose,
            _ => {}
        }
        None
    }

    /// Finds the user information of a URL from its `://`: all before the last `@` of the word. A password that is not
    /// encoded may have any other character, so that a `/`, `?` or `#` does not end it.
    fn user_information(&mut self, rest: &str) -> Option<Credential> {
        let start = "://".len();
        self.part = Part::Url;
        // An earlier `://` of this word was followed by no `@`, or by one before this place.
        if rest.len() > self.unsearched {
            return None;
        }
        let word = rest.get(start..)?.split(ends_url).next()?;
        self.unsearched = rest.len() - start - word.len();
        let length = word.rfind('@')?;
        if word.get(..length)?.contains(['?', '#']) {
            self.part = Part::Query;
        }
        Some(Credential { start, length })
    }
}

/// Returns true for a character that ends a URL in a text.
fn ends_url(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | '<' | '>' | '`' | '\\')
}

/// Finds the value of a parameter from its `=`. Punctuation at the end belongs to the text around the URL.
fn query_value(rest: &str) -> Option<Credential> {
    let start = "=".len();
    let value = rest.get(start..)?.split(|c: char| ends_url(c) || matches!(c, '&' | '#')).next()?;
    let value = value.trim_end_matches([',', '.', ';', ':', ')', ']', '}']);
    (!value.is_empty()).then_some(Credential { start, length: value.len() })
}

/// Finds the credential after the scheme of an `Authorization` header.
fn in_header(rest: &str) -> Option<Credential> {
    let scheme = SCHEMES
        .iter()
        .find(|scheme| rest.get(..scheme.len()).is_some_and(|text| text.eq_ignore_ascii_case(scheme)));
    let start = scheme?.len();
    let word = rest
        .get(start..)?
        .split(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | ',' | ';'))
        .next()?;
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
        check("a https://u:p@ss@h/x and http://v:w@i?q=a", "a https://***@h/x and http://***@i?q=***");
        check("http://u:a/b?c#d@h:8/x, http://v:w@i", "http://***@h:8/x, http://***@i");
        check("https://h/?q=a@b&sig=1", "https://***@b&sig=***");
        check("http://u:a://b@h", "http://***@h");
        check(
            "Looking in indexes: https://u:\u{e9}@h/simple, https://h/a",
            "Looking in indexes: https://***@h/simple, https://h/a",
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
        check("https://u:v@h/?next=https://w:x@i&t=1\nt=1", "https://***@i&t=***\nt=1");
        for plain in [
            "",
            "no credentials",
            "a@b",
            "a?b=c",
            "https://host/a=b?c=&d",
            "://",
            "a bearer token is sent",
            "hf_hub",
            "nx-a",
        ] {
            check(plain, plain);
        }
    }

    #[test]
    fn references_to_models_keep_no_password() {
        let check = |text: &str, expect: &str| assert_eq!(redact_reference(text), expect);
        check("hf:user:secret@a/b", "hf:***@a/b");
        check("hf:user:sec@ret@a", "hf:***@a");
        check("user:secret@host/a", "***@host/a");
        check("user:secret@127.0.0.1:9", "***@127.0.0.1:9");
        check("https://user:secret@host/a", "***@host/a");
        for plain in ["smollm2:135m@w9", "hf:a/b@refs/pr/1", "hf:a/b", "a@b", ""] {
            check(plain, plain);
        }
    }

    #[test]
    fn addresses_are_hidden_in_whole_and_in_pieces() {
        let check = |address: &str, text: &str, expect: &str| {
            assert_eq!(redact_addresses(text, &[address.to_owned()]), expect, "{address}");
        };
        let sharp = "http://user:a#SECRET@127.0.0.1:9";
        check(
            sharp,
            "Failed to parse: http://user:a#SECRET@127.0.0.1:9",
            "Failed to parse: http://***@127.0.0.1:9",
        );
        check(
            sharp,
            "InvalidURL: user:a#SECRET, path a#SECRET, fragment SECRET",
            "InvalidURL: ***, path ***, fragment ***",
        );
        check("http://user:a/SECRET@h", "a/SECRET and /SECRET@h", "*** and /***@h");
        check("user:SEC RET@h", "bad user:SEC RET@h", "bad ***@h");
        check("https://token@h/simple", "https://token@h, token", "https://***@h, ***");
        check("http://h:9", "http://h:9 user", "http://h:9 user");
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
        check("<://", "<://");
        check("bearer ", "bearer ");
        check("basic 1 ", "basic *** ");
        check("hf_", "hf_");
        check("x://?=1 ", "x://?=*** ");
        check("x://?=) ", "x://?=) ");
    }
}
