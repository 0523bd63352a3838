//! Kinds of media in conversations.

use std::fmt;

use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// Kind of a medium in a message.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum MediaKind {
    /// A picture.
    Image,
    /// A sound.
    Audio,
    /// A video, of which models read frames as pictures.
    Video,
}

impl MediaKind {
    /// Every kind.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the name of the kind in chat templates and manifests.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the name of the capability to read media of this kind, as in Ollama's API.
    pub fn capability(self) -> &'static str {
        match self {
            Self::Image | Self::Video => "vision",
            Self::Audio => "audio",
        }
    }

    /// Returns the kind that a model must read to read media of this kind.
    pub fn read_as(self) -> Self {
        match self {
            Self::Image | Self::Video => Self::Image,
            Self::Audio => Self::Audio,
        }
    }

    /// Returns whether files of this kind have this media type. Videos may be animated pictures.
    pub fn has_type(self, media_type: &str) -> bool {
        let top = media_type.split_once('/').map_or(media_type, |(top, _)| top);
        top == self.as_str() || (self == Self::Video && top == Self::Image.as_str())
    }

    /// Returns the plural for sentences.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Image => "images",
            Self::Audio => "audio",
            Self::Video => "videos",
        }
    }
}

impl fmt::Display for MediaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
