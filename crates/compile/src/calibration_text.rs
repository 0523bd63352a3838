//! Calibration texts of users: a file of text, or of JSON lines.
//!
//! A line is a text, `{"text": "…"}` or `"…"`, or a conversation, `{"messages": [{"role": "user", "content": "…"}]}`, which
//! the chat template of the model renders.

use std::{
    io,
    path::{Path, PathBuf},
};

use narthex_checkpoint::Checkpoint;
use narthex_spec::{Date, Sha256, TokenId};
use narthex_text::{
    template::{ChatTemplate, GenerationPrompt, Message, RenderOptions, Role, TemplateError},
    tokenizer::{Specials, Tokenizer, TokenizerError},
};
use serde::Deserialize;

/// Maximum size of a file, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Last part of the names of files with JSON lines.
const JSON_LINES: [&str; 2] = ["jsonl", "ndjson"];

/// Date in rendered conversations, so that a file gives the same tokens on every day.
const DATE: Date = Date { year: 2025, month: 1, day: 1 };

/// Texts with which a user calibrates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalibrationText {
    path: PathBuf,
    sha256: Sha256,
    documents: Vec<TextDocument>,
}

/// A text, and the line of the file on which it begins, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TextDocument {
    line: usize,
    content: DocumentContent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum DocumentContent {
    Text(String),
    Conversation(Vec<Message>),
}

/// Form of a line of JSON.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum JsonLine {
    Plain(String),
    Text { text: String },
    Conversation { messages: Vec<Turn> },
}

/// A message of a conversation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    role: Role,
    content: String,
}

/// Reason why a calibration text cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationTextError {
    /// The file cannot be read, or is not UTF-8 text of some megabytes.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line of the file is neither a text nor a conversation, or the model's template refuses it.
    #[error("{path}, line {line}: {reason}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line of the file, counted from 1.
        line: usize,
        /// The expected and the found value.
        reason: String,
    },
    /// The tokenizer refuses a text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The file has no text.
    #[error("{path} has no text; expected text of about 1000 words or more")]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl CalibrationText {
    /// Reads a file: JSON lines if its name ends in `.jsonl` or `.ndjson`, and plain text otherwise.
    ///
    /// # Errors
    /// [`CalibrationTextError`].
    pub fn read(path: &Path) -> Result<Self, CalibrationTextError> {
        let text = narthex_files::read(path, MAX_BYTES).and_then(narthex_files::user_text);
        let text = text.map_err(|source| CalibrationTextError::Read { path: path.to_owned(), source })?;
        Self::parse(path, text)
    }

    /// Reads the text of the file `path`.
    fn parse(path: &Path, text: String) -> Result<Self, CalibrationTextError> {
        let sha256 = Sha256::of(text.as_bytes());
        let extension = path.extension().unwrap_or_default();
        let mut documents = match JSON_LINES.iter().any(|name| extension.eq_ignore_ascii_case(name)) {
            true => json_documents(path, &text)?,
            false => vec![TextDocument { line: 1, content: DocumentContent::Text(text) }],
        };
        documents.retain(|document| match &document.content {
            DocumentContent::Text(text) => !text.trim().is_empty(),
            DocumentContent::Conversation(messages) => !messages.is_empty(),
        });
        match documents.is_empty() {
            true => Err(CalibrationTextError::Empty { path: path.to_owned() }),
            false => Ok(Self { path: path.to_owned(), sha256, documents }),
        }
    }

    /// Returns the digest of the file's text.
    pub fn sha256(&self) -> Sha256 {
        self.sha256
    }

    /// Returns the tokens of the texts one after the other, `most` tokens at most.
    ///
    /// # Errors
    /// [`CalibrationTextError::Line`] for a conversation without a template, or that the template refuses, and the errors of the
    /// tokenizer.
    pub(crate) fn tokens(
        &self,
        checkpoint: &Checkpoint,
        tokenizer: &Tokenizer,
        most: usize,
    ) -> Result<Vec<TokenId>, CalibrationTextError> {
        let mut template = None;
        let mut tokens = Vec::new();

        for TextDocument { line, content } in &self.documents {
            let refused =
                |reason| CalibrationTextError::Line { path: self.path.clone(), line: *line, reason };
            match content {
                DocumentContent::Text(text) => tokens.extend(tokenizer.encode(text, Specials::AsText)?),
                DocumentContent::Conversation(messages) => {
                    let template = match &mut template {
                        Some(template) => template,
                        None => template.insert(chat_template(checkpoint).map_err(refused)?),
                    };
                    let text = rendered(template, messages).map_err(|error| refused(error.to_string()))?;
                    tokens.extend(tokenizer.encode(&text, Specials::Parse)?);
                }
            }
            if tokens.len() >= most {
                break;
            }
        }

        tokens.truncate(most);
        Ok(tokens)
    }
}

/// Returns the texts of JSON lines. Empty lines are skipped.
fn json_documents(path: &Path, text: &str) -> Result<Vec<TextDocument>, CalibrationTextError> {
    let lines = text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty());
    lines
        .map(|(index, text)| {
            let line = index + 1;
            let content = match serde_json::from_str(text) {
                Ok(JsonLine::Plain(text) | JsonLine::Text { text }) => DocumentContent::Text(text),
                Ok(JsonLine::Conversation { messages }) => {
                    let messages = messages.into_iter().map(|turn| Message::new(turn.role, turn.content));
                    DocumentContent::Conversation(messages.collect())
                }
                Err(error) => {
                    let expected = r#"{"text": "…"} or {"messages": [{"role": "user", "content": "…"}, …]}"#;
                    let found: String = text.trim().chars().take(80).collect();
                    let reason = format!("expected {expected}, found {found} ({error})");
                    return Err(CalibrationTextError::Line { path: path.to_owned(), line, reason });
                }
            };
            Ok(TextDocument { line, content })
        })
        .collect()
}

/// Returns the chat template of a model.
fn chat_template(checkpoint: &Checkpoint) -> Result<ChatTemplate, String> {
    let Some(source) = &checkpoint.chat_template else {
        return Err("the model has no chat template; expected lines with a text".to_owned());
    };
    ChatTemplate::new(source, checkpoint.special.texts.clone()).map_err(|error| error.to_string())
}

/// Returns a conversation as the template renders it.
fn rendered(template: &ChatTemplate, messages: &[Message]) -> Result<String, TemplateError> {
    let options = RenderOptions { generation_prompt: GenerationPrompt::Leave, ..RenderOptions::answer(DATE) };
    template.render(messages, &options).map(|rendered| rendered.into_text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, text: &str) -> Result<CalibrationText, CalibrationTextError> {
        CalibrationText::parse(Path::new(name), text.to_owned())
    }

    #[test]
    fn lines_are_texts_or_conversations() {
        let text =
            "\"a b\"\n\n{\"text\": \"c\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"d\"}]}\n";
        let read = parse("texts.JSONL", text).unwrap();
        let lines: Vec<usize> = read.documents.iter().map(|document| document.line).collect();
        assert_eq!(lines, [1, 3, 4]);
        let expected = DocumentContent::Conversation(vec![Message::new(Role::User, "d")]);
        assert_eq!(read.documents[2].content, expected);
        assert_eq!(read.sha256(), Sha256::of(text.as_bytes()));
        // A file with another name is one text.
        let plain = parse("texts.txt", text).unwrap();
        assert_eq!(
            plain.documents,
            [TextDocument { line: 1, content: DocumentContent::Text(text.to_owned()) }]
        );
    }

    #[test]
    fn faults_are_named_with_their_line() {
        let check = |name: &str, text: &str, expected: &str| {
            let error = parse(name, text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        check("a.jsonl", "\"x\"\n{\"prompt\": \"y\"}\n", "a.jsonl, line 2: expected {\"text\": ");
        check(
            "a.jsonl",
            "{\"messages\": [{\"role\": \"owner\", \"content\": \"y\"}]}\n",
            "a.jsonl, line 1: ",
        );
        check("a.jsonl", "{\n", "a.jsonl, line 1: ");
        for empty in ["", " \n", "\"\"\n{\"messages\": []}\n"] {
            check("a.jsonl", empty, "a.jsonl has no text");
        }
        check("a.txt", "\n", "a.txt has no text");
        let missing = CalibrationText::read(Path::new("/no/such/file")).unwrap_err();
        assert!(matches!(missing, CalibrationTextError::Read { .. }), "{missing}");
    }

    #[test]
    fn dates_are_always_the_same() {
        let template =
            ChatTemplate::new("{{ strftime_now('%Y') }} {{ messages[0].content }}", [].into()).unwrap();
        assert_eq!(rendered(&template, &[Message::new(Role::User, "x")]).unwrap(), "2025 x");
    }
}
