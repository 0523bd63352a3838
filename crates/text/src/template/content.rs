//! Content of messages: texts with their origin, and media.

use std::{borrow::Cow, fmt, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use narthex_spec::{MediaKind, Sha256};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Author of a text in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The conversation. Spellings of control tokens are plain text.
    Conversation,
    /// The template. Markers of calls count as its own, because they are written in its place.
    Template,
}

/// A picture, a sound or a video. Clones share its bytes.
#[derive(Clone)]
pub struct Media {
    kind: MediaKind,
    media_type: Option<String>,
    bytes: Arc<Vec<u8>>,
    digest: Sha256,
}

impl Media {
    /// Creates a medium from the bytes of its file. `media_type` is the type that the sender states.
    pub fn new(kind: MediaKind, media_type: Option<String>, bytes: Vec<u8>) -> Self {
        let digest = Sha256::of(&bytes);
        Self { kind, media_type, bytes: Arc::new(bytes), digest }
    }

    /// Returns the kind.
    pub fn kind(&self) -> MediaKind {
        self.kind
    }

    /// Returns the media type that the sender stated, such as `image/png`. It may be wrong.
    pub fn media_type(&self) -> Option<&str> {
        self.media_type.as_deref()
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the digest of the bytes.
    pub fn digest(&self) -> Sha256 {
        self.digest
    }

    /// Returns the bytes in base64.
    pub fn base64(&self) -> String {
        BASE64.encode(self.bytes())
    }

    /// Returns the medium as a data URL (RFC 2397).
    pub fn data_url(&self) -> String {
        let any = match self.kind {
            MediaKind::Image => "image/*",
            MediaKind::Audio => "audio/*",
            MediaKind::Video => "video/*",
        };
        let mut url = format!("data:{};base64,", self.media_type().unwrap_or(any));
        BASE64.encode_string(self.bytes(), &mut url);
        url
    }
}

impl PartialEq for Media {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, self.digest) == (other.kind, other.digest)
    }
}

impl Eq for Media {}

impl fmt::Debug for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Media")
            .field("kind", &self.kind)
            .field("media_type", &self.media_type)
            .field("bytes", &self.bytes.len())
            .field("digest", &self.digest)
            .finish()
    }
}

/// A medium at an address. Its file must be read before the conversation is rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteMedia {
    /// Kind of the medium.
    pub kind: MediaKind,
    /// Address of its file, with HTTP or HTTPS.
    pub url: String,
    /// Path of the address in the request, for errors.
    pub param: String,
}

/// Part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A text, which is not empty.
    Text {
        /// The text.
        text: String,
        /// Its author.
        origin: Origin,
    },
    /// A picture, a sound or a video.
    Media(Media),
    /// A picture, a sound or a video at an address.
    Remote(RemoteMedia),
}

impl Part {
    /// Creates a part with a text of the conversation.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), origin: Origin::Conversation }
    }

    /// Returns the kind of a medium, also of one at an address.
    pub fn media_kind(&self) -> Option<MediaKind> {
        match self {
            Self::Text { .. } => None,
            Self::Media(media) => Some(media.kind()),
            Self::Remote(remote) => Some(remote.kind),
        }
    }
}

/// Content of a message: its parts, in order.
///
/// ```
/// use narthex_spec::MediaKind;
/// use narthex_text::template::{Content, Media, Part};
///
/// let picture = Media::new(MediaKind::Image, Some("image/png".to_owned()), vec![137, 80, 78, 71]);
/// let content: Content = [Part::text("What is this?"), Part::Media(picture)].into_iter().collect();
/// assert_eq!(content.text(), "What is this?");
/// assert_eq!(content.media().count(), 1);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    parts: Vec<Part>,
}

impl Content {
    /// Returns the parts.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the parts.
    pub fn into_parts(self) -> Vec<Part> {
        self.parts
    }

    /// Returns true if there are no parts.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns true if there are media, also at addresses.
    pub fn has_media(&self) -> bool {
        self.parts.iter().any(|part| part.media_kind().is_some())
    }

    /// Returns the media without those at addresses, in order.
    pub fn media(&self) -> impl Iterator<Item = &Media> {
        self.parts.iter().filter_map(|part| match part {
            Part::Media(media) => Some(media),
            Part::Text { .. } | Part::Remote(_) => None,
        })
    }

    /// Returns the text, without media. A part of the conversation begins a new line after another one, unless there is
    /// white space between them.
    pub fn text(&self) -> Cow<'_, str> {
        match self.parts.as_slice() {
            [Part::Text { text, .. }] => Cow::Borrowed(text),
            _ => Cow::Owned(self.texts().map(|span| span.text).collect()),
        }
    }

    /// Returns the texts whose concatenation is [`Self::text`], with their origins.
    pub(super) fn texts(&self) -> impl Iterator<Item = TextSpan<'_>> {
        let mut last: Option<TextSpan<'_>> = None;
        self.parts
            .iter()
            .flat_map(move |part| {
                let Part::Text { text, origin } = part else { return [None, None] };
                let next = TextSpan { text, origin: *origin };
                let is_divided = last.replace(next).is_none_or(|last| last.is_divided_from(next));
                let line_break = TextSpan { text: "\n", origin: Origin::Conversation };
                [(!is_divided).then_some(line_break), Some(next)]
            })
            .flatten()
    }

    /// Returns the parts as templates see them: the texts between two media or parts of the conversation, and the
    /// media.
    pub(super) fn items(&self) -> Vec<ContentItem<'_>> {
        let mut items: Vec<ContentItem<'_>> = Vec::new();
        for part in &self.parts {
            match (part, items.last_mut()) {
                (Part::Media(media), _) => items.push(ContentItem::Media(media)),
                // `render` refuses them.
                (Part::Remote(_), _) => {}
                // Markers belong to the text around them.
                (Part::Text { text, origin }, Some(ContentItem::Text(spans)))
                    if *origin == Origin::Template
                        || spans.last().is_some_and(|last| last.origin == Origin::Template) =>
                {
                    spans.push(TextSpan { text, origin: *origin });
                }
                (Part::Text { text, origin }, _) => {
                    items.push(ContentItem::Text(vec![TextSpan { text, origin: *origin }]));
                }
            }
        }
        items
    }

    /// Continues the last text.
    pub fn push_str(&mut self, text: &str) {
        self.push_text(text, Origin::Conversation);
    }

    /// Appends a marker, such as that of a call, to the last text. It counts as written by the template.
    pub fn push_marker(&mut self, marker: &str) {
        self.push_text(marker, Origin::Template);
    }

    fn push_text(&mut self, text: &str, origin: Origin) {
        match self.parts.last_mut() {
            Some(Part::Text { text: last, origin: author }) if *author == origin => last.push_str(text),
            _ => self.push(Part::Text { text: text.to_owned(), origin }),
        }
    }

    /// Appends a part of its own. Empty texts are left out.
    pub fn push(&mut self, part: Part) {
        if !matches!(&part, Part::Text { text, .. } if text.is_empty()) {
            self.parts.push(part);
        }
    }

    /// Appends other content after `separator`, if neither is empty.
    pub fn append(&mut self, separator: &str, other: Self) {
        if !self.is_empty() && !other.is_empty() {
            self.push_str(separator);
        }
        let mut parts = other.parts.into_iter();
        match parts.next() {
            Some(Part::Text { text, origin }) => self.push_text(&text, origin),
            first => self.extend(first),
        }
        self.extend(parts);
    }
}

/// Part of a message in the form of templates with lists of parts.
pub(super) enum ContentItem<'a> {
    Text(Vec<TextSpan<'a>>),
    Media(&'a Media),
}

/// A text by one author.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextSpan<'a> {
    pub(super) text: &'a str,
    pub(super) origin: Origin,
}

impl TextSpan<'_> {
    /// Returns true if the next text needs no line break before it: markers and the text around them, and parts with
    /// white space.
    fn is_divided_from(self, next: TextSpan<'_>) -> bool {
        self.origin == Origin::Template
            || next.origin == Origin::Template
            || self.text.ends_with(char::is_whitespace)
            || next.text.starts_with(char::is_whitespace)
    }
}

impl Extend<Part> for Content {
    fn extend<T: IntoIterator<Item = Part>>(&mut self, parts: T) {
        parts.into_iter().for_each(|part| self.push(part));
    }
}

impl FromIterator<Part> for Content {
    fn from_iter<T: IntoIterator<Item = Part>>(parts: T) -> Self {
        let mut content = Self::default();
        content.extend(parts);
        content
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        [Part::text(text)].into_iter().collect()
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// True for content that has no media and this text.
impl PartialEq<str> for Content {
    fn eq(&self, text: &str) -> bool {
        !self.has_media() && self.text() == text
    }
}

impl PartialEq<&str> for Content {
    fn eq(&self, text: &&str) -> bool {
        *self == **text
    }
}

/// Content without media is a string. Other content is a list of parts, in which media have no bytes.
impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !self.has_media() {
            return serializer.serialize_str(&self.text());
        }
        serializer.collect_seq(&self.parts)
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text { text, .. } => serializer.collect_map([("type", "text"), ("text", text)]),
            Self::Media(media) => serializer.collect_map([("type", media.kind().as_str())]),
            Self::Remote(RemoteMedia { kind, url, .. }) => {
                serializer.collect_map([("type", kind.as_str()), ("url", url)])
            }
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(byte: u8) -> Media {
        Media::new(MediaKind::Image, Some("image/png".to_owned()), vec![byte; 3])
    }

    #[test]
    fn parts_without_white_space_between_them_are_lines() {
        let check = |parts: &[&str], expect: &str| {
            let content: Content = parts.iter().map(|part| Part::text(*part)).collect();
            assert_eq!(content, expect);
        };
        check(&["Be brief.", "Be kind."], "Be brief.\nBe kind.");
        check(&["the ", "cat"], "the cat");
        check(&["a", "", "\nb"], "a\nb");
        check(&[], "");
    }

    #[test]
    fn markers_continue_the_text_around_them() {
        let mut content = Content::from("a");
        content.push_marker("<c>");
        content.push_marker("<d>");
        content.push_str("b");
        content.push_str("c");
        content.push(Part::text("d"));
        assert_eq!((content.parts().len(), &*content.text()), (4, "a<c><d>bc\nd"));
        let mut joined = Content::from("first");
        joined.append("\n\n", content);
        assert_eq!((joined.parts().len(), &*joined.text()), (4, "first\n\na<c><d>bc\nd"));
        let mut empty = Content::default();
        empty.append("\n\n", "b".into());
        assert_eq!(empty, Content::from("b"));
        empty.append("\n\n", Content::default());
        assert_eq!(empty, "b");
    }

    #[test]
    fn media_at_addresses_are_media_without_bytes() {
        let (url, param) = ("https://host/a.png".to_owned(), "messages[0].content[0].image_url".to_owned());
        let remote = Part::Remote(RemoteMedia { kind: MediaKind::Image, url, param });
        let content: Content = [remote, Part::text("a")].into_iter().collect();
        assert!(content.has_media() && content.media().next().is_none());
        assert_ne!(content, "a");
        let json = serde_json::to_string(&content).unwrap();
        assert_eq!(json, r#"[{"type":"image","url":"https://host/a.png"},{"type":"text","text":"a"}]"#);
    }

    #[test]
    fn media_are_told_apart_by_their_bytes() {
        let content: Content =
            [Part::text("a"), Part::Media(picture(1)), Part::text("b")].into_iter().collect();
        assert_eq!((content.media().count(), &*content.text()), (1, "a\nb"));
        assert_ne!(content, "a\nb");
        assert_eq!(picture(1), picture(1));
        assert_ne!(picture(1), picture(2));
        assert!(!format!("{:?}", picture(1)).contains("[1, 1, 1]"));
        let json = serde_json::to_string(&content).unwrap();
        assert_eq!(json, r#"[{"type":"text","text":"a"},{"type":"image"},{"type":"text","text":"b"}]"#);
        assert_eq!(serde_json::to_string(&Content::from("a")).unwrap(), r#""a""#);
    }
}
