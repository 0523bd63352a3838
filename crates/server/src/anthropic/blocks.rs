//! Content blocks of messages, and their texts.

use narthex_gateway::request::{Content, ExactJson, MediaKind, Part, Role, omission_note};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::{
    error::ApiError,
    protocol::{
        body,
        conversation::stable_text,
        media::{Base64File, FileUrl},
        text_or_list::{ListElement, TextOrList},
    },
};

/// A text or a list of content blocks.
pub(super) type Blocks = TextOrList<Block>;

/// Reads an input. Integers beyond 64 bits lose their digits, until [`ExactBlocks`] restores them.
fn inexact<'de, D: Deserializer<'de>>(from: D) -> Result<ExactJson, D::Error> {
    Value::deserialize(from).map(ExactJson::from)
}

/// The inputs of calls in a list of content blocks. A block is read as one of several types, from a copy of its values that
/// has no digits of large integers.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct ExactBlocks(Vec<ExactBlock>);

#[derive(Debug, Deserialize)]
struct ExactBlock {
    #[serde(default)]
    input: Option<ExactJson>,
}

impl ExactBlocks {
    /// Replaces the inputs of the calls in the blocks.
    pub(super) fn restore(self, blocks: &mut [Block]) {
        for (block, exact) in blocks.iter_mut().zip(self.0) {
            if let (Block::ToolUse { input, .. }, Some(exact)) = (block, exact.input) {
                *input = exact;
            }
        }
    }
}

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
        #[serde(default, deserialize_with = "inexact")]
        #[schemars(with = "Value")]
        input: ExactJson,
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
    Image {
        #[serde(default)]
        source: ImageSource,
    },
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
    McpToolUse {},
    McpToolResult {},
    ContainerUpload {},
    #[serde(other)]
    Unknown,
}

/// Source of a picture.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ImageSource {
    Base64 {
        media_type: Option<String>,
        #[schemars(with = "String")]
        data: Base64File,
    },
    Url {
        #[schemars(with = "String")]
        url: FileUrl,
    },
    /// A stored file, which this server does not have.
    #[default]
    #[serde(other)]
    File,
}

impl ImageSource {
    /// Returns the picture. `path` is the path of the source for errors.
    pub(super) fn into_part(self, path: &str) -> Result<Part, ApiError> {
        match self {
            Self::Base64 { media_type, data } => {
                data.into_image(media_type, &format!("{path}.data")).map(Part::Media)
            }
            Self::Url { url } => url.into_part(MediaKind::Image, &format!("{path}.url")),
            Self::File => {
                let message =
                    format!("{path}: expected a source of type base64; stored files are not supported");
                Err(ApiError::unsupported_as(path, message))
            }
        }
    }
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

    /// Returns the text of a block, or a note if it has parts that the model cannot read.
    fn into_text_or_note(self, what: &str) -> Part {
        Part::text(self.into_plain_text().unwrap_or_else(|| omission_note(what)))
    }

    /// Returns the block as a part of a message of this role; `None` for a text of which nothing is left. `path` is its
    /// path for errors.
    pub(super) fn into_part(self, role: Role, path: &str) -> Option<Result<Part, ApiError>> {
        match self {
            Self::Text { text } => stable_text(role, text).map(|text| Ok(Part::text(text))),
            Self::Image { source } => Some(source.into_part(&format!("{path}.source"))),
            other => Some(other.into_plain_text().map(Part::text).ok_or_else(|| not_text(path))),
        }
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
        "{path}: expected text, images, documents with a text, or tools; this version of Narthex reads no other blocks"
    );
    ApiError::unsupported_as(path, message)
}

impl Blocks {
    /// Returns the content of a tool's result, with notes instead of documents and of images that cannot be read. An
    /// agent that has received one sends it with every later request.
    pub(super) fn into_result(self, path: &str) -> Result<Content, ApiError> {
        let Self::List(blocks) = self else { return self.into_content(Role::Tool, path) };
        let parts = blocks.into_iter().map(|block| match block {
            Block::Image { source } => {
                let image = source.into_part(path);
                Ok(image.unwrap_or_else(|_| Part::text(omission_note("image"))))
            }
            document @ Block::Document { .. } => Ok(document.into_text_or_note("document")),
            result @ Block::SearchResult { .. } => Ok(result.into_text_or_note("search result")),
            other => other.into_plain_text().map(Part::text).ok_or_else(|| not_text(path)),
        });
        parts.collect()
    }

    /// Returns the text of blocks; `None` if one of them has parts that the model cannot read.
    fn into_plain_text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::List(blocks) => {
                let parts = blocks.into_iter().map(|block| block.into_plain_text().map(Part::text));
                Some(parts.collect::<Option<Content>>()?.text().into_owned())
            }
        }
    }

    /// Returns the content of a message of this role, whose blocks are texts and images.
    pub(super) fn into_content(self, role: Role, path: &str) -> Result<Content, ApiError> {
        let blocks = match self {
            Self::Text(text) => return Ok(text.into()),
            Self::List(blocks) => blocks,
        };
        let parts = blocks.into_iter().enumerate();
        parts.filter_map(|(index, block)| block.into_part(role, &format!("{path}[{index}]"))).collect()
    }
}
