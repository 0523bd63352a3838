//! Lines for people, broken between words so that they fit a terminal. Text that programs read is never broken.
//!
//! Wrapping is our own, because only spaces between words break a line: paths, and parts of a summary, stay whole.

use std::borrow::Cow;

use console::{Term, measure_text_width};

/// Separator of the parts of a summary, which stay whole.
const SEPARATOR: &str = "· ";

/// Minimum width of a terminal at which lines are wrapped.
const MIN_WIDTH: usize = 20;

/// Returns the text with the lines that are wider than the terminal broken. Text for a file or a pipe is unchanged.
pub(crate) fn for_terminal<'a>(term: &Term, text: &'a str) -> Cow<'a, str> {
    match term.size_checked() {
        Some((_, columns)) => wrapped(text, columns.into()),
        None => Cow::Borrowed(text),
    }
}

fn wrapped(text: &str, width: usize) -> Cow<'_, str> {
    if width < MIN_WIDTH || text.lines().all(|line| measure_text_width(line) <= width) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.split('\n').map(|line| wrapped_line(line, width)).collect::<Vec<_>>().join("\n"))
}

/// Breaks a line. A word that is wider than the terminal, such as a path, stays whole.
fn wrapped_line(line: &str, width: usize) -> String {
    if measure_text_width(line) <= width {
        return line.to_owned();
    }
    let indent = continuation_indent(line, width);
    let separator = if line.contains(SEPARATOR) { SEPARATOR } else { " " };
    let mut broken = String::new();
    let mut column = 0;
    for word in line.split_inclusive(separator) {
        if column > indent && column + measure_text_width(word.trim_end()) > width {
            broken.truncate(broken.trim_end().len());
            broken.push('\n');
            broken.push_str(&" ".repeat(indent));
            column = indent;
        }
        broken.push_str(word);
        column += measure_text_width(word);
    }
    broken
}

/// Returns the indentation of what follows a break: that of the last column of a line with columns, else two more than
/// that of the line.
fn continuation_indent(line: &str, width: usize) -> usize {
    let leading = line.len() - line.trim_start_matches(' ').len();
    let gaps = line.match_indices("  ").map(|(at, _)| at + line[at..].len() - line[at..].trim_start().len());
    let columns =
        gaps.map(|at| measure_text_width(&line[..at])).filter(|&at| at > leading && at <= width / 2);
    columns.last().unwrap_or(leading + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let check = |line: &str, expect: &str| assert_eq!(wrapped(line, 24), expect);
        check("short\n\nlines stay", "short\n\nlines stay");
        check("error: nothing has room for this model", "error: nothing has room\n  for this model");
        check("  → install Python 3 with pip or else", "  → install Python 3\n    with pip or else");
        // What follows a break is below the last column.
        check("note    its text is too long", "note    its text is too\n        long");
        check("ok  a  its text is too long for it", "ok  a  its text is too\n       long for it");
        // Parts of a summary stay whole.
        check(
            "tiny on cpu · first token 13 ms · 5 tokens",
            "tiny on cpu ·\n  first token 13 ms ·\n  5 tokens",
        );
        check("wrote /a/path/that/is/longer/than/this", "wrote\n  /a/path/that/is/longer/than/this");
        check("\x1b[1merror:\x1b[0m of these four words", "\x1b[1merror:\x1b[0m of these four\n  words");
    }
}
