//! Text as programs write it, into files and pipes.

use std::io;

/// Marks at the beginning of a text that name its encoding.
const UTF_8: [u8; 3] = [0xef, 0xbb, 0xbf];
const UTF_16_LITTLE_ENDIAN: [u8; 2] = [0xff, 0xfe];
const UTF_16_BIG_ENDIAN: [u8; 2] = [0xfe, 0xff];

/// Returns the text of bytes that were read: UTF-8.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if they are not UTF-8.
pub fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Returns a text that a user wrote: UTF-8, with or without a byte order mark, or UTF-16 with one. Windows PowerShell
/// writes UTF-16 with `>`, and older editors mark UTF-8. The mark is no part of the text.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if the bytes do not have the encoding that their mark names, or are not UTF-8.
pub fn user_text(bytes: Vec<u8>) -> io::Result<String> {
    if let Some(rest) = bytes.strip_prefix(&UTF_8) {
        return utf8(rest.to_vec());
    }
    if let Some(rest) = bytes.strip_prefix(&UTF_16_LITTLE_ENDIAN) {
        return utf16(rest, u16::from_le_bytes);
    }
    if let Some(rest) = bytes.strip_prefix(&UTF_16_BIG_ENDIAN) {
        return utf16(rest, u16::from_be_bytes);
    }
    utf8(bytes)
}

fn utf16(bytes: &[u8], unit: impl Fn([u8; 2]) -> u16) -> io::Result<String> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
    let text = String::from_utf16(&units).ok().filter(|_| rest.is_empty());
    text.ok_or_else(|| {
        let message = "expected UTF-16, as the first two bytes say, found other bytes";
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_windows_are_read() {
        let check = |bytes: &[u8], expect: Option<&str>| {
            assert_eq!(user_text(bytes.to_vec()).ok().as_deref(), expect, "{bytes:?}");
        };
        check(b"", Some(""));
        check("Grüße".as_bytes(), Some("Grüße"));
        check(b"\xef\xbb\xbfa", Some("a"));
        check(b"\xff\xfea\0\xfc\0\r\0\n\0", Some("aü\r\n"));
        check(b"\xfe\xff\0a\x65\xe5", Some("a日"));
        check(b"\xff\xfe\x3d\xd8\x00\xde", Some("😀"));
        // Only the first mark is one.
        check("\u{feff}\u{feff}a".as_bytes(), Some("\u{feff}a"));
        // Half of a unit, half of a pair, and bytes of no encoding.
        check(b"\xff\xfea", None);
        check(b"\xff\xfe\x3d\xd8", None);
        check(b"a\xff", None);
        check(b"\xef\xbb\xbf\xff", None);
    }
}
