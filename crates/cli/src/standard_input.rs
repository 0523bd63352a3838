//! Texts from standard input, whose size is limited. A longer input is refused, never cut.

use std::io::{self, BufRead, ErrorKind, IsTerminal, Read, stderr, stdin};

use anyhow::Context;

use crate::{interrupt, output};

/// Maximum size of a prompt or of a list of texts, in bytes.
const LIMIT: u64 = 16 << 20;

/// Maximum size of the answer to a question, in bytes.
const ANSWER_LIMIT: u64 = 1 << 10;

/// Key that ends the input in a terminal.
const END_OF_INPUT: &str = if cfg!(windows) { "Ctrl-Z and Enter" } else { "Ctrl-D" };

/// Reads the text of a command before its job starts. On a terminal, it first prints `request`, which asks for the
/// text, and the key that ends the input.
pub(crate) fn text(request: &str) -> anyhow::Result<String> {
    text_up_to(request, LIMIT)
}

/// Reads the lines of the text, as [`text`] does.
pub(crate) fn lines(request: &str) -> anyhow::Result<Vec<String>> {
    Ok(text(request)?.lines().map(str::to_owned).collect())
}

/// Reads a text of at most `limit` bytes, as [`text`] does.
pub(crate) fn text_up_to(request: &str, limit: u64) -> anyhow::Result<String> {
    let text = interrupt::input(|| {
        if stdin().is_terminal() && stderr().is_terminal() {
            output::note(format!("{request}, then press {END_OF_INPUT} on an empty line."));
        }
        read(stdin().lock(), limit)
    });
    text.context("cannot read standard input")
}

/// Reads the answer to a question: one line, in lower case and without spaces around it.
pub(crate) fn answer() -> anyhow::Result<String> {
    let line =
        interrupt::input(|| read_line(stdin().lock(), ANSWER_LIMIT)).context("cannot read the answer")?;
    Ok(line.trim().to_ascii_lowercase())
}

fn read_line(input: impl BufRead, limit: u64) -> io::Result<String> {
    let mut line = String::new();
    input.take(limit).read_line(&mut line)?;
    // The rest of a longer line must not become the next answer.
    if line.len() as u64 == limit && !line.ends_with('\n') {
        let message = format!("expected fewer than {limit} bytes, found more");
        return Err(io::Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(line)
}

fn read(input: impl Read, limit: u64) -> io::Result<String> {
    narthex_files::user_text(narthex_files::read_bounded(input, limit)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_input_is_refused_instead_of_cut() {
        let check = |input: &[u8], expect: Result<&str, ErrorKind>| {
            let found = read(input, 4).map_err(|error| error.kind());
            assert_eq!(found.as_deref().map_err(|kind| *kind), expect);
        };
        check(b"abcd", Ok("abcd"));
        check("aäb".as_bytes(), Ok("aäb"));
        check(b"abcde", Err(ErrorKind::FileTooLarge));
        // The limit lies inside a character.
        check("abcäd".as_bytes(), Err(ErrorKind::FileTooLarge));
        check(b"\xff", Err(ErrorKind::InvalidData));
        // Windows PowerShell writes UTF-16.
        check(b"\xff\xfea\0", Ok("a"));
    }

    #[test]
    fn an_answer_is_a_short_line() {
        let check = |input: &[u8], expect: Result<&str, ErrorKind>| {
            let found = read_line(input, 4).map_err(|error| error.kind());
            assert_eq!(found.as_deref().map_err(|kind| *kind), expect);
        };
        check(b"", Ok(""));
        check(b"yes\nno", Ok("yes\n"));
        check(b"no", Ok("no"));
        check(b"nooo\n", Err(ErrorKind::FileTooLarge));
        check(&[0; 99], Err(ErrorKind::FileTooLarge));
    }
}
