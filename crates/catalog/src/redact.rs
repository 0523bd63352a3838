//! Removal of credentials from texts that are logged, printed or sent.

use std::borrow::Cow;

/// Replacement for a credential.
const HIDDEN: &str = "***";

/// Authentication schemes of an `Authorization` header, before the credential.
const SCHEMES: [&str; 2] = ["bearer ", "basic "];

/// Prefixes of tokens with the minimum number of characters after them: tokens of the hub, and of Narthex.
const TOKENS: [(&str, usize); 2] = [("hf_", 16), ("nx-", 32)];

/// Returns a text with all credentials replaced: user names and passwords of URLs (`https://user:token@host`),
/// credentials of `Authorization` headers, tokens of the hub and API keys.
pub fn redact(text: &str) -> Cow<'_, str> {
    let is_suspect =
        text.contains("://") || find_word(text, &SCHEMES).is_some() || find_token(text).is_some();
    if !is_suspect {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(Credential { start, end }) = next_credential(rest) {
        clean.push_str(rest.get(..start).unwrap_or_default());
        clean.push_str(HIDDEN);
        rest = rest.get(end..).unwrap_or_default();
    }
    clean.push_str(rest);
    Cow::Owned(clean)
}

/// A range of bytes in a text.
#[derive(Clone, Copy)]
struct Credential {
    start: usize,
    end: usize,
}

fn next_credential(text: &str) -> Option<Credential> {
    let found = [in_url(text), in_header(text), find_token(text)];
    found.into_iter().flatten().min_by_key(|credential| credential.start)
}

/// Finds the user information of a URL: the part of the authority before its last `@`.
fn in_url(text: &str) -> Option<Credential> {
    let ends = |c: char| {
        c.is_whitespace() || c.is_control() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>')
    };
    let mut from = 0;
    while let Some(at) = text.get(from..)?.find("://") {
        let start = from + at + 3;
        let authority = text.get(start..)?;
        let authority = authority.split(ends).next().unwrap_or_default();
        match authority.rfind('@') {
            Some(length) if authority.get(..length) != Some(HIDDEN) => {
                return Some(Credential { start, end: start + length });
            }
            _ => from = start,
        }
    }
    None
}

/// Finds the credential after the scheme of an `Authorization` header.
fn in_header(text: &str) -> Option<Credential> {
    let ends = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | ',' | ';');
    let mut from = 0;
    while let Some(start) = find_word(text.get(from..)?, &SCHEMES).map(|at| from + at) {
        let length = text.get(start..)?.find(ends).unwrap_or(text.len() - start);
        // In prose such as "a bearer token" a word follows; credentials have digits or are long.
        let word = text.get(start..start + length)?;
        if word != HIDDEN && (word.len() > 20 || word.bytes().any(|byte| byte.is_ascii_digit())) {
            return Some(Credential { start, end: start + length });
        }
        from = start;
    }
    None
}

/// Returns the end of the first occurrence of one of some words in a text, ignoring case.
fn find_word(text: &str, words: &[&str]) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    words.iter().filter_map(|word| lower.find(word).map(|at| at + word.len())).min()
}

fn find_token(text: &str) -> Option<Credential> {
    let found = TOKENS.iter().filter_map(|&(prefix, minimum)| {
        text.match_indices(prefix).find_map(|(start, _)| {
            let digits = text.get(start + prefix.len()..)?;
            let length = digits.bytes().take_while(u8::is_ascii_alphanumeric).count();
            (length >= minimum).then_some(Credential { start, end: start + prefix.len() + length })
        })
    });
    found.min_by_key(|credential| credential.start)
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
        check("a https://u:p@ss@h/x and http://v:w@i?q=a@b", "a https://***@h/x and http://***@i?q=a@b");
        check(
            "Looking in indexes: https://u:\u{e9}@h/simple, https://h/a@b",
            "Looking in indexes: https://***@h/simple, https://h/a@b",
        );
        check("\"socks5://u:p@h\"", "\"socks5://***@h\"");
        check("Authorization: Bearer abc123; x", "Authorization: Bearer ***; x");
        check("authorization: basic dXNlcjpwYXNz9", "authorization: basic ***");
        check(&format!("token hf_{} is", "a1B2".repeat(8)), "token *** is");
        check(&format!("key nx-{}.", "0123456789abcdef".repeat(3)), "key ***.");
        for plain in [
            "",
            "no credentials",
            "a@b",
            "https://host/@x",
            "://",
            "a bearer token is sent",
            "hf_hub",
            "nx-a",
        ] {
            check(plain, plain);
        }
    }
}
