//! Content blocks of messages, and their texts.

use narthex_gateway::request::Role;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::ApiError,
    protocol::{
        body,
        conversation::{join_parts, omission_note, stable_text},
        text_or_list::{ListElement, TextOrList},
    },
};

/// A text or a list of content blocks.
pub(super) type Blocks = TextOrList<Block>;

impl ListElement for Block {
    const EXPECTED: &'static str = "a string or a list of content blocks";
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[serde(default)]
        input: Value,
    },
    ToolResult {
        tool_use_id: String,
        content: Option<Blocks>,
        is_error: Option<bool>,
    },
    Thinking {
        thinking: String,
    },
    RedactedThinking {},
    Image {},
    Document {
        #[serde(default)]
        source: DocumentSource,
        title: Option<String>,
        /// Description of the document.
        context: Option<String>,
        #[serde(default, deserialize_with = "body::filled")]
        citations: Option<Citations>,
    },
    SearchResult {
        title: Option<String>,
        source: Option<String>,
        content: Blocks,
    },
    /// Name of a tool that a search of tools found.
    ToolReference {
        tool_name: String,
    },
    /// Call of a tool on Anthropic's servers.
    ServerToolUse {},
    WebSearchToolResult {},
    WebFetchToolResult {},
    CodeExecutionToolResult {},
    BashCodeExecutionToolResult {},
    TextEditorCodeExecutionToolResult {},
    ToolSearchToolResult {},
    #[serde(other)]
    Unknown,
}

/// Settings of the citations of a document.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Citations {
    enabled: Option<bool>,
}

/// Source of a document.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum DocumentSource {
    Text {
        data: String,
    },
    Content {
        content: Blocks,
    },
    /// A file that the model cannot read.
    #[default]
    #[serde(other)]
    File,
}

impl DocumentSource {
    /// Returns the text, if it is one.
    fn into_text(self) -> Option<String> {
        match self {
            Self::Text { data } => Some(data),
            Self::Content { content } => content.into_plain_text(),
            Self::File => None,
        }
    }
}

impl Block {
    /// Returns true if the answer should cite this document.
    pub(super) fn wants_citations(&self) -> bool {
        matches!(self, Self::Document { citations: Some(Citations { enabled: Some(true) }), .. })
    }

    /// Returns a block with the text of this one, or with a note if it has parts that the model cannot read.
    fn into_text_or_note(self, what: &str) -> Self {
        Self::Text { text: self.into_plain_text().unwrap_or_else(|| omission_note(what)) }
    }

    /// Returns the text of a block; `None` if it has parts that the model cannot read.
    pub(super) fn into_plain_text(self) -> Option<String> {
        match self {
            Self::Text { text } => Some(text),
            Self::Document { source, title, context, .. } => {
                Some(titled([title, context], source.into_text()?))
            }
            Self::SearchResult { title, source, content } => {
                Some(titled([title, source], content.into_plain_text()?))
            }
            Self::ToolReference { tool_name } => Some(tool_name),
            _ => None,
        }
    }
}

/// Returns a text after the lines of its head.
fn titled(head: [Option<String>; 2], text: String) -> String {
    let lines = head.into_iter().flatten().chain([text]);
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the error of a block that the model cannot read.
pub(super) fn not_text(path: &str) -> ApiError {
    let message = format!(
        "{path}: expected text, documents with a text, or tools; this version of Narthex reads no other blocks"
    );
    ApiError::unsupported_as(path, message)
}

impl Blocks {
    /// Returns the text of a tool's result, with notes instead of images and documents. An agent that has read one sends
    /// it with every later request.
    pub(super) fn into_result_text(self, path: &str) -> Result<String, ApiError> {
        let Self::List(blocks) = self else { return self.into_text(Role::Tool, path) };
        let noted = blocks.into_iter().map(|block| match block {
            Block::Image {} => Block::Text { text: omission_note("image") },
            document @ Block::Document { .. } => document.into_text_or_note("document"),
            result @ Block::SearchResult { .. } => result.into_text_or_note("search result"),
            other => other,
        });
        Self::List(noted.collect()).into_text(Role::Tool, path)
    }

    /// Returns the text of blocks; `None` if one of them has parts that the model cannot read.
    fn into_plain_text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::List(blocks) => {
                let texts: Option<Vec<_>> = blocks.into_iter().map(Block::into_plain_text).collect();
                Some(join_parts(texts?))
            }
        }
    }

    /// Returns the text of a message of this role, whose blocks are all text.
    pub(super) fn into_text(self, role: Role, path: &str) -> Result<String, ApiError> {
        let blocks = match self {
            Self::Text(text) => return Ok(text),
            Self::List(blocks) => blocks,
        };
        let texts = blocks.into_iter().filter_map(|block| match block {
            Block::Text { text } => stable_text(role, text).map(Ok),
            other => Some(other.into_plain_text().ok_or_else(|| not_text(path))),
        });
        Ok(join_parts(texts.collect::<Result<Vec<_>, _>>()?))
    }
}
