//! The text of an answer on a terminal: broken between words, and with its Markdown rendered if that is asked for. Text
//! for a file or a pipe is unchanged.
//!
//! Answers arrive in parts, so a word is held back until its end is known. Markdown is rendered word by word for the same
//! reason: a renderer of whole documents would show nothing until the end.

use std::mem;

use console::{Term, measure_text_width};

use crate::output::without_controls;

/// Minimum width of a terminal at which lines are broken.
const MIN_WIDTH: usize = 20;

/// Maximum number of columns that are held back until the end of a word is known. A longer word does not fit a line, so
/// it is shown as it arrives.
const MAX_HELD_BACK: usize = 400;

/// Number of columns between tab stops.
const TAB: usize = 8;

/// Fence of a block of code.
const FENCE: &str = "```";

/// Text of an answer that is written in parts.
pub(crate) struct AnswerText {
    /// Columns of the terminal; `None` for a file or a pipe.
    width: Option<usize>,
    renders_markdown: bool,
    /// Column of the next character.
    column: usize,
    is_line_start: bool,
    /// Spaces before the word.
    spaces: String,
    /// Beginning of a word.
    word: String,
    /// Number of columns of the beginning.
    word_columns: usize,
    /// Set if an earlier part of the word is shown.
    continues_word: bool,
    /// Set inside a block of code, whose lines are not broken.
    in_code_block: bool,
    /// Set if the current line is the fence of a block of code.
    is_fence: bool,
    style: TextStyle,
}

/// Styles that are switched on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct TextStyle {
    heading: bool,
    bold: bool,
    italic: bool,
    code: bool,
}

impl TextStyle {
    /// Returns the codes that a terminal needs for this style after another one.
    fn after(self, before: Self) -> String {
        [
            (before.is_strong(), self.is_strong(), "\x1b[1m", "\x1b[22m"),
            (before.italic, self.italic, "\x1b[3m", "\x1b[23m"),
            (before.code, self.code, "\x1b[36m", "\x1b[39m"),
        ]
        .into_iter()
        .map(|(was_on, is_on, on, off)| match (was_on, is_on) {
            (false, true) => on,
            (true, false) => off,
            _ => "",
        })
        .collect()
    }

    fn is_strong(self) -> bool {
        self.bold || self.heading
    }
}

impl AnswerText {
    /// Returns the text of an answer on standard output. Markdown is rendered only on a terminal with colours.
    pub(crate) fn for_stdout(renders_markdown: bool) -> Self {
        let columns = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        Self::within(columns, renders_markdown && console::colors_enabled())
    }

    fn within(width: Option<usize>, renders_markdown: bool) -> Self {
        Self {
            width: width.map(|width| if width < MIN_WIDTH { usize::MAX } else { width }),
            renders_markdown,
            column: 0,
            is_line_start: true,
            spaces: String::new(),
            word: String::new(),
            word_columns: 0,
            continues_word: false,
            in_code_block: false,
            is_fence: false,
            style: TextStyle::default(),
        }
    }

    /// Takes a part. Returns what can be shown. The last word follows after a line break.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let Some(width) = self.width else { return text.to_owned() };
        let mut shown = String::new();

        for char in without_controls(text).chars() {
            match char {
                '\n' => {
                    self.end_word(width, &mut shown);
                    self.end_line(&mut shown);
                }
                ' ' | '\t' => {
                    self.end_word(width, &mut shown);
                    self.spaces.push(char);
                }
                // A line may be broken beside a wide character, as in Chinese.
                char if columns_of(char) > 1 => {
                    self.end_word(width, &mut shown);
                    self.word.push(char);
                    self.end_word(width, &mut shown);
                }
                char => {
                    self.word.push(char);
                    self.word_columns += columns_of(char);
                    // A mark belongs to the character beside it.
                    let may_be_mark = self.renders_markdown && matches!(char, '*' | '_' | '`' | '\\');
                    if self.word_columns > width.min(MAX_HELD_BACK) && !may_be_mark {
                        self.end_word(width, &mut shown);
                        self.continues_word = true;
                    }
                }
            }
        }
        shown
    }

    /// Ends a line, and with it every style but that of a block of code.
    fn end_line(&mut self, shown: &mut String) {
        let style = TextStyle { code: self.in_code_block && self.renders_markdown, ..TextStyle::default() };
        shown.push_str(&style.after(mem::replace(&mut self.style, style)));
        shown.push('\n');
        (self.column, self.is_line_start, self.is_fence) = (0, true, false);
        self.spaces.clear();
    }

    fn end_word(&mut self, width: usize, shown: &mut String) {
        let continues_word = mem::take(&mut self.continues_word);
        if self.word.is_empty() {
            return;
        }

        self.word_columns = 0;
        let mut word = mem::take(&mut self.word);
        let is_first = mem::take(&mut self.is_line_start);
        if is_first && word.starts_with(FENCE) {
            self.in_code_block = !self.in_code_block;
            self.is_fence = true;
        }

        let is_literal = self.in_code_block || self.is_fence;
        if is_first && self.renders_markdown && !is_literal {
            word = self.block_start(word);
            if word.is_empty() {
                shown.push_str(&self.style.after(TextStyle { heading: false, ..self.style }));
                self.spaces.clear();
                return;
            }
        }

        let (text, columns) = match self.renders_markdown && !is_literal {
            true => self.inline(&word),
            false => (word.clone(), measure_text_width(&word)),
        };
        if self.column == 0 && self.style.heading {
            self.spaces.clear();
        }
        let gap = self.spaces.chars().fold(self.column, |column, space| match space {
            '\t' => (column / TAB + 1) * TAB,
            _ => column + 1,
        });
        if !is_literal && !continues_word && self.column > 0 && gap.saturating_add(columns) > width {
            shown.push('\n');
            self.column = 0;
        } else {
            shown.push_str(&self.spaces);
            self.column = gap;
        }
        self.spaces.clear();
        shown.push_str(&text);
        self.column += columns;
        if self.column > width {
            self.column %= width;
        }
    }

    /// Interprets the first word of a line. Returns what is shown of it.
    fn block_start(&mut self, word: String) -> String {
        match word.as_str() {
            "-" | "*" | "+" => "•".to_owned(),
            ">" => "│".to_owned(),
            marks if marks.len() <= 6 && marks.chars().all(|char| char == '#') => {
                self.style.heading = true;
                String::new()
            }
            _ => word,
        }
    }

    /// Renders the marks in a word. Returns it with the codes of a terminal, and its number of columns.
    fn inline(&mut self, word: &str) -> (String, usize) {
        let mut shown = String::new();
        let mut columns = 0;
        let chars: Vec<char> = word.chars().collect();
        let mut at = 0;
        while let Some(&char) = chars.get(at) {
            let next = chars.get(at + 1).copied();
            let is_double = next == Some(char);
            let before = at.checked_sub(1).and_then(|before| chars.get(before));
            let after = chars.get(at + if is_double { 2 } else { 1 });
            let [follows_word, precedes_word] =
                [before, after].map(|char| char.is_some_and(|char| char.is_alphanumeric()));

            let mut style = self.style;
            let mut taken = 1;
            match char {
                '`' => style.code = !style.code,
                _ if style.code => taken = 0,
                '\\' if next.is_some_and(|next| next.is_ascii_punctuation()) => {
                    at += 1;
                    taken = 0;
                }
                '*' | '_' if char == '_' && follows_word && precedes_word => taken = 0,
                '*' | '_' if is_double => (style.bold, taken) = (!style.bold, 2),
                // A mark begins before a text and ends after one.
                '*' | '_' if style.italic || (after.is_some() && !follows_word) => {
                    style.italic = !style.italic
                }
                _ => taken = 0,
            }
            if taken > 0 {
                shown.push_str(&style.after(self.style));
                self.style = style;
                at += taken;
                continue;
            }
            let Some(&char) = chars.get(at) else { break };
            shown.push(char);
            columns += columns_of(char);
            at += 1;
        }
        (shown, columns)
    }
}

/// Returns the number of columns of a character.
fn columns_of(char: char) -> usize {
    measure_text_width(char.encode_utf8(&mut [0; 4]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is shown of a text that arrives in parts of some characters.
    fn shown(width: usize, renders_markdown: bool, text: &str, part: usize) -> String {
        let mut answer = AnswerText::within(Some(width), renders_markdown);
        let chars: Vec<char> = text.chars().collect();
        let parts = chars.chunks(part).map(|part| answer.push(&part.iter().collect::<String>()));
        let shown: String = parts.collect();
        let shown = shown + &answer.push("\n");
        shown.strip_suffix('\n').unwrap().to_owned()
    }

    fn check(renders_markdown: bool, text: &str, expect: &str) {
        for part in [1, 3, 1000] {
            assert_eq!(shown(20, renders_markdown, text, part), expect, "in parts of {part}");
        }
    }

    #[test]
    fn lines_are_broken_between_words() {
        check(false, "one two three four five six", "one two three four\nfive six");
        check(false, "one two\n\n  three", "one two\n\n  three");
        check(false, "12345678901234567890 next", "12345678901234567890\nnext");
        check(false, "a word-that-is-wider-than-the-terminal b", "a\nword-that-is-wider-than-the-terminal b");
        check(false, "日本語日本語日本語日本語", "日本語日本語日本語日\n本語");
        check(false, "```\na line of code that is long\n```\nx", "```\na line of code that is long\n```\nx");
        check(false, "**bold** \u{1b}[2J", r"**bold** \u{1b}[2J");
        let narrow = shown(5, false, "one two three", 4);
        assert_eq!(narrow, "one two three", "a very narrow terminal breaks lines itself");
    }

    #[test]
    fn a_word_without_end_is_shown() {
        for width in [5, 20, 1000] {
            let mut answer = AnswerText::within(Some(width), true);
            let shown = answer.push(&"x".repeat(10_000));
            assert!(shown.len() > 9_000 && shown.chars().all(|char| char == 'x'), "{width}: {}", shown.len());
        }
    }

    #[test]
    fn a_pipe_gets_the_text_unchanged() {
        let mut answer = AnswerText::within(None, true);
        let text = "**one** two three four five \u{1b}[1m";
        assert_eq!(answer.push(text), text);
    }

    #[test]
    fn markdown_is_rendered_word_by_word() {
        let (bold, plain) = ("\x1b[1m", "\x1b[22m");
        check(true, "a **bold text** b", &format!("a {bold}bold text{plain} b"));
        check(true, "# Title\ntext", &format!("{bold}Title{plain}\ntext"));
        check(true, "- one\n* two", "• one\n• two");
        check(true, "use `a*b*c` or 2*3", "use \x1b[36ma*b*c\x1b[39m or 2*3");
        check(true, "an *old* a_b \\*star", "an \x1b[3mold\x1b[23m a_b *star");
        check(true, "```rust\nlet **x** = 1;\n```\nend", "```rust\x1b[36m\nlet **x** = 1;\n```\x1b[39m\nend");
        check(true, "**open", &format!("{bold}open{plain}"));
        // Marks take no columns.
        check(true, "**one** **two** three four", &format!("{bold}one{plain} {bold}two{plain} three four"));
    }
}
