//! Addresses of pages and mailboxes, and names of accounts.

use super::{
    numbers,
    pattern::{Pattern, pattern},
};

/// Endings of host names that are recognised without `https://` or `www.`.
const ENDINGS: &str = "com|org|net|edu|gov|mil|int|info|biz|io|dev|app|ai|co|uk|us|ca|au|de|fr|eu|jp|in|me|tv|rs|sh|xyz|page|blog|tech|cloud";

/// Maximum number of parts of a path that are read.
const MAX_PARTS: usize = 3;

pattern!(MAIL, r"[A-Za-z0-9._%+-]{{1,64}}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+");
pattern!(URL, r"(?:https?|ftp)://\S+|www\.\S+|(?:[A-Za-z0-9-]+\.)+(?:{ENDINGS})\b(?:/\S*)?");
pattern!(ACCOUNT, r"@([A-Za-z][A-Za-z0-9_]*)");

/// Reads addresses as words.
pub(super) fn addresses(text: String) -> String {
    if !text.contains(['.', '@', ':']) {
        return text;
    }
    let text = MAIL.replace(text, |found| {
        let (mailbox, host) = found.group(0).split_once('@')?;
        let words = format!("{} at {}", spoken(mailbox), spoken_host(host));
        Some(before_dot(&words, found.after()))
    });

    let text = URL.replace(text, |found| {
        let before = found.before();
        if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | '@')) {
            return None;
        }
        let address = found.group(0);
        let trimmed = address.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '"', '\'', '>', '”']);
        let after = &address[trimmed.len()..];
        let words = spoken_url(trimmed);
        Some(before_dot(&words, after.chars().next().or(found.after())) + after)
    });

    ACCOUNT.replace(text, |found| {
        let is_start = found.before().is_none_or(|c| !c.is_alphanumeric());
        is_start.then(|| format!("at {}", found.group(1)))
    })
}

/// Returns words without the dot of a spelled letter at their end if the dot of the sentence follows.
fn before_dot(words: &str, after: Option<char>) -> String {
    if after == Some('.') { words.trim_end_matches('.') } else { words }.to_owned()
}

/// Reads a host and the beginning of its path. Queries and fragments are not read.
fn spoken_url(address: &str) -> String {
    let address = address.split_once("://").map_or(address, |(_, rest)| rest);
    let address = address.strip_prefix("www.").unwrap_or(address);
    let address = address.split(['?', '#']).next().unwrap_or(address);
    let (host, path) = address.split_once('/').unwrap_or((address, ""));
    let (host, port) = host.split_once(':').unwrap_or((host, ""));
    let mut words = spoken_host(host);
    if !port.is_empty() {
        words.push_str(" port ");
        words.push_str(&numbers::digits(port));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if parts.len() <= MAX_PARTS {
        for part in parts {
            words.push_str(" slash ");
            words.push_str(&spoken(part));
        }
    }
    words
}

/// Reads a host name. Endings of two letters are spelled.
fn spoken_host(host: &str) -> String {
    let labels: Vec<String> = host
        .split('.')
        .enumerate()
        .map(|(index, label)| {
            let is_spelled = index > 0 && label.len() == 2 && label.bytes().all(|b| b.is_ascii_alphabetic());
            if is_spelled && !matches!(label, "me" | "in" | "co") {
                return label.to_ascii_uppercase().chars().map(|c| format!("{c}.")).collect();
            }
            spoken(label)
        })
        .collect();
    labels.join(" dot ")
}

/// Reads a part of an address. Digits are read one by one.
fn spoken(part: &str) -> String {
    let mut words = String::new();
    for c in part.chars() {
        match c {
            '.' => words.push_str(" dot "),
            '-' => words.push_str(" dash "),
            '_' => words.push_str(" underscore "),
            '+' => words.push_str(" plus "),
            '%' => words.push_str(" percent "),
            '~' => words.push_str(" tilde "),
            ':' => words.push_str(" colon "),
            '=' => words.push_str(" equals "),
            '&' => words.push_str(" and "),
            '@' => words.push_str(" at "),
            c if c.is_ascii_digit() => {
                words.push(' ');
                words.push_str(&numbers::digits(c.encode_utf8(&mut [0; 4])));
                words.push(' ');
            }
            c if c.is_alphabetic() => words.push(c),
            _ => words.push(' '),
        }
    }
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
pub(super) fn check_patterns() {
    [&MAIL, &URL, &ACCOUNT].into_iter().for_each(Pattern::check);
}
