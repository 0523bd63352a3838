//! Markdown as a person reads it aloud: without marks, with the text of links, lists item by item and tables row by row.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// Returns the paragraphs of a Markdown text, as plain text. Headings, list items and table rows are paragraphs that end
/// in punctuation. Emphasis is dropped, inline code is read, and a block of code is only named.
pub fn paragraphs(markdown: &str) -> Vec<String> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut reader = Reader::default();
    for event in Parser::new_ext(markdown, options) {
        reader.read(event);
    }
    reader.end_paragraph(Ending::Text);
    reader.paragraphs
}

/// End of a paragraph.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The text's own.
    Text,
    /// A full stop, if the text has no punctuation at its end.
    Punctuated,
}

#[derive(Default)]
struct Reader {
    paragraphs: Vec<String>,
    text: String,
    /// Numbers of the next items of the open lists; `None` for a list of bullets.
    lists: Vec<Option<u64>>,
    /// Header cells of the open table.
    header: Vec<String>,
    /// Cells of the open row.
    cells: Vec<String>,
    /// Set inside a block of code, which is not read.
    is_code: bool,
}

impl Reader {
    fn read(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) | Event::Code(text) if !self.is_code => self.text.push_str(&text),
            Event::Html(html) | Event::InlineHtml(html) => self.text.push_str(&without_tags(&html)),
            Event::SoftBreak => self.text.push(' '),
            Event::HardBreak => self.end_paragraph(Ending::Text),
            Event::TaskListMarker(done) => self.text.push_str(if done { "Done: " } else { "To do: " }),
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph | Tag::Heading { .. } | Tag::HtmlBlock => {}
            Tag::CodeBlock(CodeBlockKind::Fenced(language)) => {
                self.end_paragraph(Ending::Punctuated);
                self.text.push_str(&named_code(&language));
                self.is_code = true;
            }
            Tag::CodeBlock(CodeBlockKind::Indented) => self.end_paragraph(Ending::Punctuated),
            Tag::List(first) => {
                self.end_paragraph(Ending::Punctuated);
                self.lists.push(first);
            }
            Tag::Item => {
                self.end_paragraph(Ending::Punctuated);
                if let Some(Some(number)) = self.lists.last_mut() {
                    self.text.push_str(&format!("{number}: "));
                    *number = number.saturating_add(1);
                }
            }
            Tag::Table(_) => self.header.clear(),
            Tag::TableHead | Tag::TableRow => self.cells.clear(),
            Tag::Image { .. } => self.text.push_str("image: "),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph if self.lists.is_empty() => self.end_paragraph(Ending::Text),
            TagEnd::HtmlBlock => self.end_paragraph(Ending::Text),
            TagEnd::Paragraph | TagEnd::Heading(_) | TagEnd::Item => {
                self.end_paragraph(Ending::Punctuated);
            }
            TagEnd::CodeBlock => {
                self.is_code = false;
                self.end_paragraph(Ending::Punctuated);
            }
            TagEnd::List(_) => {
                self.end_paragraph(Ending::Punctuated);
                self.lists.pop();
            }
            TagEnd::TableCell => self.cells.push(std::mem::take(&mut self.text)),
            TagEnd::TableHead => self.header = std::mem::take(&mut self.cells),
            TagEnd::TableRow => self.end_row(),
            _ => {}
        }
    }

    /// Reads a row as pairs of a column's name and a cell.
    fn end_row(&mut self) {
        let cells = std::mem::take(&mut self.cells);
        let named = cells.iter().enumerate().filter(|(_, cell)| !cell.trim().is_empty());
        let named = named.map(|(index, cell)| {
            let header = self.header.get(index).map_or("", |header| header.trim());
            if header.is_empty() { cell.trim().to_owned() } else { format!("{header}: {}", cell.trim()) }
        });
        self.text = named.collect::<Vec<_>>().join(", ");
        self.end_paragraph(Ending::Punctuated);
    }

    fn end_paragraph(&mut self, ending: Ending) {
        let text = std::mem::take(&mut self.text);
        let mut text = text.trim().to_owned();
        if text.is_empty() {
            return;
        }
        if ending == Ending::Punctuated
            && text.ends_with(|c: char| c.is_alphanumeric() || ")]}\"”’'%".contains(c))
        {
            text.push('.');
        }
        self.paragraphs.push(text);
    }
}

/// Names a block of code by its language.
fn named_code(language: &str) -> String {
    let name = language.split([' ', ',', '{']).next().unwrap_or_default();
    let name = match name.to_ascii_lowercase().as_str() {
        "" | "text" | "txt" => return "A block of text.".to_owned(),
        "bash" | "console" | "sh" | "shell" | "zsh" => "shell",
        "cpp" | "c++" => "C plus plus",
        "cs" | "csharp" => "C sharp",
        "js" | "javascript" => "JavaScript",
        "md" | "markdown" => "Markdown",
        "py" | "python" => "Python",
        "rs" | "rust" => "Rust",
        "ts" | "typescript" => "TypeScript",
        "yml" | "yaml" => "YAML",
        _ => name,
    };
    format!("A block of {name} code.")
}

/// Returns HTML without its tags and comments.
fn without_tags(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        text.push_str(&rest[..start]);
        let close = if rest[start..].starts_with("<!--") { "-->" } else { ">" };
        match rest[start..].find(close) {
            Some(end) => rest = &rest[start + end + close.len()..],
            None => return text,
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_is_read_as_a_person_reads_it() {
        let check = |markdown: &str, expect: &[&str]| assert_eq!(paragraphs(markdown), expect, "{markdown}");
        check("# A *new* day\n\nIt **is** [late](https://a.example/b).", &["A new day.", "It is late."]);
        check("One line\nand its rest.\n\nThe next", &["One line and its rest.", "The next"]);
        check("- milk\n- eggs,\n- bread!", &["milk.", "eggs,", "bread!"]);
        check("1. Mix\n2. Bake", &["1: Mix.", "2: Bake."]);
        check("7. Mix\n8. Bake\n   - slowly", &["7: Mix.", "8: Bake.", "slowly."]);
        check("- [x] wash\n- [ ] dry", &["Done: wash.", "To do: dry."]);
        check("Run `cargo test` now.", &["Run cargo test now."]);
        check("Look:\n\n```rust\nfn main() {}\n```\n\nDone.", &["Look:", "A block of Rust code.", "Done."]);
        check("~~gone~~ __here__", &["gone here"]);
        check("![a red barn](x.png)", &["image: a red barn"]);
        check("> Be kind.\n> Always.", &["Be kind. Always."]);
        check("a\n\n---\n\nb", &["a", "b"]);
        check("x <b>bold</b> y", &["x bold y"]);
        check("<div>\n<!-- note -->\nHi <i>you</i>\n</div>", &["Hi you"]);
        check("| Name | Age |\n|---|---|\n| Ann | 30 |\n| Bo | |", &["Name: Ann, Age: 30.", "Name: Bo."]);
        check("2 * 3 * 4 = 24, snake_case stays", &["2 * 3 * 4 = 24, snake_case stays"]);
        check("    indented text", &["indented text."]);
        check("", &[]);
    }

    #[test]
    fn unclosed_tags_end_the_text() {
        assert_eq!(without_tags("a <b"), "a ");
        assert_eq!(without_tags("a <!-- b > c"), "a ");
        assert_eq!(without_tags("1 > 0"), "1 > 0");
    }
}
