//! Messages of the compiler on one line, reasons in them, and values of requests, all of limited length.

/// Maximum bytes of a message.
const MAX_MESSAGE: usize = 1 << 10;

/// Maximum bytes of a regular expression in an error.
const MAX_SHOWN: usize = 120;

/// Beginning of the compiler's message about assertions, and the reason for the client.
const LOOKAROUNDS: &str = "lookarounds not supported";
const ASSERTIONS: &str = r"assertions such as \b, and ^ and $ in the middle, are not supported";

/// Returns the reason in a message about an expression that cannot be parsed.
pub(super) fn expression_reason(message: &str) -> &str {
    let reason = message.rsplit_once("error: ").map_or(message, |(_, reason)| reason);
    if reason.contains(LOOKAROUNDS) { ASSERTIONS } else { reason }
}

/// Returns a message of the compiler on one line, without lines of the grammar that it shows.
pub(super) fn cleaned(message: &str) -> String {
    if message.contains("panic: ") {
        return "the compiler cannot represent it".to_owned();
    }
    let lines = message.lines().map(str::trim).filter(|line| !is_of_grammar(line));
    cut(&lines.collect::<Vec<_>>().join(" "), MAX_MESSAGE)
}

/// Returns true for a line of the grammar, which begins with its number, and for the marks below it.
fn is_of_grammar(line: &str) -> bool {
    let number = line.split_once(" |").map(|(number, _)| number);
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        || line.bytes().all(|byte| byte == b'^')
        || line == "<non-verbose/>"
}

/// Returns a value of a schema with at most [`MAX_SHOWN`] bytes.
pub(super) fn shortened(value: &str) -> String {
    cut(value, MAX_SHOWN)
}

/// Returns a text with at most `length` bytes and `…` in place of the rest.
fn cut(text: &str, length: usize) -> String {
    if text.len() <= length {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(length)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_one_line_of_limited_length() {
        assert_eq!(
            cleaned("at 1(8): unknown name\n   1 | start: other\n            ^\n"),
            "at 1(8): unknown name"
        );
        assert_eq!(cleaned("no start\n<non-verbose/>"), "no start");
        assert_eq!(cleaned("a\n  b\n\n  ^^^\nc"), "a b c");
        let long = cleaned(&"é".repeat(MAX_MESSAGE));
        assert!(long.len() <= MAX_MESSAGE + '…'.len_utf8() && long.ends_with("é…"), "{}", long.len());
    }
}
