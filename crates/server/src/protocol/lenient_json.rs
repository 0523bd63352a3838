//! Forms of JSON that other servers accept and `serde_json` refuses: a byte order mark before the body, and surrogates
//! without their partner, which clients write when they cut a text between two UTF-16 units.

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Escape of U+FFFD, the replacement character.
const REPLACEMENT: &[u8] = b"\\ufffd";

/// Half of a character in UTF-16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Surrogate {
    High,
    Low,
}

/// Removes a byte order mark, and replaces surrogates without their partner by U+FFFD. The body does not grow.
pub(crate) fn normalise(body: &mut Vec<u8>) {
    if body.starts_with(BYTE_ORDER_MARK) {
        body.drain(..BYTE_ORDER_MARK.len());
    }
    let mut at = 0;
    while let Some(offset) = body.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'\\')) {
        at += offset;
        let end = at + REPLACEMENT.len();
        at = match surrogate_at(body, at) {
            Some(Surrogate::High) if surrogate_at(body, end) == Some(Surrogate::Low) => {
                end + REPLACEMENT.len()
            }
            Some(_) => {
                body[at..end].copy_from_slice(REPLACEMENT);
                end
            }
            None => at + 2,
        };
    }
}

/// Returns the surrogate whose escape begins at this position.
fn surrogate_at(body: &[u8], at: usize) -> Option<Surrogate> {
    let digits = body.get(at..)?.strip_prefix(b"\\u")?.get(..4)?;
    match u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()? {
        0xD800..0xDC00 => Some(Surrogate::High),
        0xDC00..0xE000 => Some(Surrogate::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surrogates_without_a_partner_are_replaced() {
        let check = |body: &str, expect: &str| {
            let mut bytes = body.as_bytes().to_vec();
            normalise(&mut bytes);
            assert_eq!(serde_json::from_slice::<String>(&bytes).unwrap(), expect, "{body}");
        };
        check(r#""a\ud83d\ude42b""#, "a\u{1F642}b");
        check(r#""a\ud83d""#, "a\u{FFFD}");
        check(r#""\uDE42a""#, "\u{FFFD}a");
        check(r#""\ud83d\ud83d\ude42""#, "\u{FFFD}\u{1F642}");
        check(r#""\ud83d\n""#, "\u{FFFD}\n");
        check(r#""\\ud83d""#, r"\ud83d");
        check(r#""\\\ud83d""#, "\\\u{FFFD}");
        check(r#""\u00e9""#, "\u{e9}");
    }

    #[test]
    fn bodies_that_end_within_an_escape_stay() {
        for body in ["\\", "\\u", "\\ud8", "\\ud83d\\", "\\u+d83"] {
            let mut bytes = body.as_bytes().to_vec();
            normalise(&mut bytes);
            assert_eq!(bytes.len(), body.len(), "{body}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_removed() {
        let mut body = b"\xEF\xBB\xBF{}".to_vec();
        normalise(&mut body);
        assert_eq!(body, b"{}");
    }
}
