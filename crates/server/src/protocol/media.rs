//! Pictures, sounds and videos in bodies: base64 and data URLs, decoded once, while the body is parsed.
//!
//! A value that is not the expected one becomes an error with its path when its message is converted. Pictures at
//! addresses are read later, if the operator allows it.

use std::{borrow::Cow, fmt};

use base64::{
    DecodeError, Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use narthex_gateway::request::{Media, MediaKind, Part, RemoteMedia};
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

use crate::error::ApiError;

/// Maximum bytes of one picture or sound.
pub(crate) const MAX_MEDIA_BYTES: usize = 20 << 20;

/// Media type of a video whose data are the frames as JPEG files, each in base64, with commas between them. vLLM has introduced it.
const FRAMES: &str = "video/jpeg";

/// Maximum bytes of an address.
const MAX_URL: usize = 8 << 10;

/// Maximum bytes of a media type or a value in a message.
const MAX_SHOWN: usize = 80;

/// Base64 with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Bytes of a file, or the reason why they cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileBytes(Result<Vec<u8>, String>);

impl FileBytes {
    /// Decodes the files of a list with commas, one after another.
    fn of_list(texts: &str) -> Self {
        let mut all = Vec::new();
        for text in texts.split(',') {
            match Self::of_base64(text).0 {
                Ok(bytes) if all.len() + bytes.len() <= MAX_MEDIA_BYTES => all.extend(bytes),
                Ok(_) => return Self(Err(format!("expected at most {MAX_MEDIA_BYTES} bytes, found more"))),
                Err(problem) => return Self(Err(problem)),
            }
        }
        Self(Ok(all))
    }

    /// Decodes base64, in which white space is ignored.
    fn of_base64(text: &str) -> Self {
        let text = match text.contains(|char: char| char.is_ascii_whitespace()) {
            true => Cow::Owned(text.split_ascii_whitespace().collect()),
            false => Cow::Borrowed(text),
        };
        if text.len() > MAX_MEDIA_BYTES.div_ceil(3) * 4 {
            let bytes = text.len() / 4 * 3;
            return Self(Err(format!("expected at most {MAX_MEDIA_BYTES} bytes, found about {bytes} bytes")));
        }
        Self(match BASE64.decode(&*text) {
            Ok(bytes) if bytes.is_empty() => Err("expected a file in base64, found an empty text".to_owned()),
            Ok(bytes) => Ok(bytes),
            Err(error) => Err(format!("expected base64, {}", problem(&text, error))),
        })
    }
}

/// Returns what is wrong with base64.
fn problem(text: &str, error: DecodeError) -> String {
    match error {
        DecodeError::InvalidByte(index, _) => {
            let char = text.get(index..).and_then(|rest| rest.chars().next());
            let char = char.map_or_else(|| "a part of a character".to_owned(), |char| format!("{char:?}"));
            format!("found {char} after {index} characters")
        }
        DecodeError::InvalidLength(length) => format!("found {length} characters, which are not whole bytes"),
        DecodeError::InvalidLastSymbol(..) | DecodeError::InvalidPadding => {
            "found an end that is not whole bytes".to_owned()
        }
    }
}

/// A file as base64.
#[derive(Debug)]
pub(crate) struct Base64File(FileBytes);

impl<'de> Deserialize<'de> for Base64File {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value
            .deserialize_str(TextVisitor { expected: "a file in base64", read: FileBytes::of_base64 })
            .map(Self)
    }
}

/// A file as a data URL, or its address.
#[derive(Debug)]
pub(crate) enum FileUrl {
    Data { media_type: Option<String>, bytes: FileBytes },
    Address(String),
}

impl FileUrl {
    /// Reads a URL.
    fn read(url: &str) -> Self {
        let refused = |problem: String| Self::Data { media_type: None, bytes: FileBytes(Err(problem)) };
        let Some(rest) = strip_prefix(url, "data:") else {
            let is_address = ["http:", "https:"].iter().any(|scheme| strip_prefix(url, scheme).is_some());
            return match is_address {
                true if url.len() <= MAX_URL => Self::Address(url.to_owned()),
                true => {
                    refused(format!("expected an address of at most {MAX_URL} bytes, found {}", url.len()))
                }
                false => refused(format!(
                    "expected a data URL, such as \"data:image/png;base64,…\", found {:?}",
                    shown(url)
                )),
            };
        };
        let Some((head, data)) = rest.split_once(',') else {
            return refused(format!(
                "expected a comma before the data of a data URL, found none in {:?}",
                shown(url)
            ));
        };
        let mut fields = head.split(';').map(str::trim);
        let media_type =
            fields.next().filter(|text| !text.is_empty()).map(|text| shown(text).to_ascii_lowercase());
        if !fields.any(|field| field.eq_ignore_ascii_case("base64")) {
            return refused(format!("expected a data URL in base64, found {:?}", shown(url)));
        }
        let bytes = match media_type.as_deref() {
            Some(FRAMES) => FileBytes::of_list(data),
            _ => FileBytes::of_base64(data),
        };
        Self::Data { media_type, bytes }
    }
}

impl<'de> Deserialize<'de> for FileUrl {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_str(TextVisitor { expected: "a data URL", read: Self::read })
    }
}

/// Returns the text after a prefix, without regard to case.
fn strip_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Returns the beginning of a text.
fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_SHOWN)]
}

/// Reads a string without a copy of it.
struct TextVisitor<T> {
    expected: &'static str,
    read: fn(&str) -> T,
}

impl<T> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        Ok((self.read)(text))
    }
}

/// A picture or a video in OpenAI's protocols: a data URL, or an object that has one.
#[derive(Debug)]
pub(crate) struct MediaUrl {
    url: FileUrl,
    /// Path of the URL in the field.
    path: &'static str,
}

/// Fields of a picture or a video. `detail` has no effect, because the model determines the size at which it reads a picture.
#[derive(Deserialize, JsonSchema)]
struct MediaUrlObject {
    #[schemars(with = "String")]
    url: FileUrl,
}

impl JsonSchema for MediaUrl {
    fn schema_name() -> Cow<'static, str> {
        "MediaUrl".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let object = generator.subschema_for::<MediaUrlObject>();
        schemars::json_schema!({ "anyOf": [{ "type": "string" }, object] })
    }
}

impl<'de> Deserialize<'de> for MediaUrl {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(MediaUrlVisitor)
    }
}

struct MediaUrlVisitor;

impl<'de> Visitor<'de> for MediaUrlVisitor {
    type Value = MediaUrl;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a data URL or an object with one")
    }

    fn visit_str<E: de::Error>(self, url: &str) -> Result<MediaUrl, E> {
        Ok(MediaUrl { url: FileUrl::read(url), path: "" })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<MediaUrl, A::Error> {
        let MediaUrlObject { url } = MediaUrlObject::deserialize(MapAccessDeserializer::new(map))?;
        Ok(MediaUrl { url, path: ".url" })
    }
}

/// A sound in OpenAI's protocols, or a video in that of llama.cpp's server.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct InputMedia {
    #[schemars(with = "String")]
    data: Base64File,
    /// Format of the file, such as `wav`, `mp3` or `gif`.
    format: Option<String>,
}

/// Returns the medium with these bytes, or the error of the field `path`.
fn media(
    kind: MediaKind,
    media_type: Option<String>,
    bytes: FileBytes,
    path: &str,
) -> Result<Media, ApiError> {
    let FileBytes(bytes) = bytes;
    bytes
        .map(|bytes| Media::new(kind, media_type, bytes))
        .map_err(|problem| ApiError::bad_request(path, format!("{path}: {problem}")))
}

/// Brands of pictures in ISO's container, which sounds have too: HEIF, its codecs HEVC (HEIC) and AV1 (AVIF), and Canon's.
const PICTURE_BRANDS: [&[u8]; 6] = [b"hei", b"hev", b"avi", b"mif", b"msf", b"crx "];

/// Returns whether a file begins as one of the formats of sound.
fn is_sound(bytes: &[u8]) -> bool {
    match bytes {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => true,
        [b'F', b'O', b'R', b'M', _, _, _, _, b'A', b'I', b'F', b'F' | b'C', ..] => true,
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => {
            !PICTURE_BRANDS.iter().any(|picture| brand.starts_with(picture))
        }
        // Frames of MPEG audio and of AAC, and Matroska.
        [0xff, second, ..] if second & 0xe0 == 0xe0 => true,
        [0x1a, 0x45, 0xdf, 0xa3, ..] => true,
        _ => [b"ID3".as_slice(), b"fLaC", b"OggS"].iter().any(|start| bytes.starts_with(start)),
    }
}

/// Checks that a stated media type is of a kind.
fn check_type(kind: MediaKind, media_type: Option<&str>, path: &str) -> Result<(), ApiError> {
    let Some(media_type) = media_type.filter(|media_type| !kind.has_type(media_type)) else {
        return Ok(());
    };
    let message =
        format!("{path}: expected the type of a file to be {kind}/…, found {:?}", shown(media_type));
    Err(ApiError::bad_request(path, message))
}

impl FileUrl {
    /// Returns false if another type is stated than that of a picture.
    pub(crate) fn may_be_image(&self) -> bool {
        match self {
            Self::Data { media_type: Some(media_type), .. } => media_type.starts_with("image/"),
            Self::Data { media_type: None, .. } | Self::Address(_) => true,
        }
    }

    /// Returns the medium of this kind. `path` is the path of the URL for errors.
    pub(crate) fn into_part(self, kind: MediaKind, path: &str) -> Result<Part, ApiError> {
        match self {
            Self::Data { media_type, bytes } => {
                check_type(kind, media_type.as_deref(), path)?;
                media(kind, media_type, bytes, path).map(Part::Media)
            }
            Self::Address(url) => Ok(Part::Remote(RemoteMedia { kind, url, param: path.to_owned() })),
        }
    }
}

impl MediaUrl {
    /// Returns the medium of this kind. `path` is the path of the field for errors.
    pub(crate) fn into_part(self, kind: MediaKind, path: &str) -> Result<Part, ApiError> {
        self.url.into_part(kind, &format!("{path}{}", self.path))
    }
}

impl InputMedia {
    /// Returns the medium of this kind. `path` is the path of the field for errors.
    pub(crate) fn into_media(self, kind: MediaKind, path: &str) -> Result<Media, ApiError> {
        let media_type = self.format.map(|format| format!("{kind}/{}", shown(&format).to_ascii_lowercase()));
        media(kind, media_type, self.data.0, &format!("{path}.data"))
    }
}

impl Base64File {
    /// Returns the picture or the sound, by its content. `path` is the path of the file for errors.
    pub(crate) fn into_media(self, path: &str) -> Result<Media, ApiError> {
        let is_sound = self.0.0.as_deref().is_ok_and(is_sound);
        media(if is_sound { MediaKind::Audio } else { MediaKind::Image }, None, self.0, path)
    }

    /// Returns the picture with this stated type. `path` is the path of the file for errors.
    pub(crate) fn into_image(self, media_type: Option<String>, path: &str) -> Result<Media, ApiError> {
        check_type(MediaKind::Image, media_type.as_deref(), path)?;
        media(MediaKind::Image, media_type, self.0, path)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn picture(part: Part) -> Media {
        match part {
            Part::Media(media) => media,
            other => panic!("{other:?}"),
        }
    }

    fn image(value: Value) -> Result<Media, String> {
        let param = if value.is_object() { "a.url" } else { "a" };
        let url: MediaUrl = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let part = url.into_part(MediaKind::Image, "a");
        part.map(picture).map_err(|error| {
            let body = error.body();
            assert_eq!((error.status().as_u16(), &body["error"]["param"]), (400, &json!(param)));
            body["error"]["message"].as_str().unwrap().to_owned()
        })
    }

    #[test]
    fn files_of_ollama_s_images_may_be_sounds() {
        let kind = |bytes: &[u8]| {
            let file: Base64File = serde_json::from_value(json!(BASE64.encode(bytes))).unwrap();
            file.into_media("images[0]").unwrap().kind()
        };
        for sound in [
            &b"RIFF\x24\0\0\0WAVEfmt "[..],
            b"FORM\0\0\0\x2eAIFFCOMM",
            b"\0\0\0\x20ftypM4A ",
            b"\0\0\0\x20ftypisom",
            b"ID3\x04",
            b"\xff\xfb\x90",
            b"\xff\xf1\x50",
            b"fLaC\0",
            b"OggS\0",
            b"\x1a\x45\xdf\xa3\x9f",
        ] {
            assert_eq!(kind(sound), MediaKind::Audio, "{sound:?}");
        }
        for image in [
            &b"\x89PNG"[..],
            b"\xff\xd8\xff\xe0",
            b"RIFF\x24\0\0\0WEBPVP8 ",
            b"\0\0\0\x18ftypheic",
            b"\0\0\0\x18ftyphevx",
            b"\0\0\0\x1cftypavif",
            b"\0\0\0\x1cftypmif1",
            b"GIF89a",
            b"BM",
            b"text",
            b"R",
        ] {
            assert_eq!(kind(image), MediaKind::Image, "{image:?}");
        }
    }

    #[test]
    fn data_urls_are_decoded() {
        for url in [
            "data:image/png;base64,iVBORw==",
            "data:image/png;base64,iVBORw",
            "DATA:Image/PNG;charset=utf-8;BASE64,iVBO\r\n Rw==",
        ] {
            for value in [json!(url), json!({"url": url, "detail": "high"})] {
                let media = image(value).unwrap();
                assert_eq!(
                    (media.kind(), media.bytes()),
                    (MediaKind::Image, [137, b'P', b'N', b'G'].as_slice())
                );
                assert_eq!(media.media_type(), Some("image/png"), "{url}");
                assert_eq!(media.data_url(), "data:image/png;base64,iVBORw==");
            }
        }
        assert_eq!(image(json!("data:;base64,iVBORw==")).unwrap().media_type(), None);
    }

    #[test]
    fn addresses_of_pictures_are_read_later() {
        for url in ["https://example.org/cat.png", "HTTP://169.254.169.254/latest"] {
            let read: MediaUrl = serde_json::from_value(json!({"url": url})).unwrap();
            let Part::Remote(remote) = read.into_part(MediaKind::Image, "a").unwrap() else {
                panic!("{url}")
            };
            assert_eq!((remote.url.as_str(), remote.param.as_str()), (url, "a.url"));
        }
    }

    #[test]
    fn what_is_no_data_url_is_refused_with_the_reason() {
        let check = |url: &str, expect: &str| {
            let error = image(json!(url)).unwrap_err();
            assert!(error.starts_with("a: expected ") && error.contains(expect), "{url}: {error}");
            assert!(error.len() < 400, "{error}");
        };
        check(&format!("https://example.org/{}", "a".repeat(MAX_URL)), "an address of at most 8192 bytes");
        check("file:///etc/passwd", "found \"file:///etc/passwd\"");
        check("/etc/passwd", "a data URL");
        check("", "a data URL");
        check("data:image/png;base64", "a comma");
        check("data:image/png,iVBORw==", "in base64");
        check("data:image/png;base64,", "found an empty text");
        check("data:image/png;base64,iVB!Rw==", "found '!' after 3 characters");
        check("data:image/png;base64,iVBORé==", "found 'é' after 5 characters");
        check("data:image/png;base64,iVBOR", "not whole bytes");
        check("data:application/pdf;base64,iVBORw==", "to be image/…, found \"application/pdf\"");
        check(&format!("ftp:{}", "x".repeat(10_000)), "a data URL");
        check(&format!("data:{};base64,iVBORw==", "x".repeat(10_000)), "image/…");
        assert!(image(json!({"detail": "low"})).unwrap_err().contains("missing field `url`"));
        assert!(image(json!(5)).unwrap_err().contains("expected a data URL"));
    }

    #[test]
    fn files_have_a_maximum_size() {
        let read = |bytes: usize| FileBytes::of_base64(&"A".repeat(bytes / 3 * 4)).0.map(|bytes| bytes.len());
        let most = MAX_MEDIA_BYTES / 3 * 3;
        assert_eq!(read(most), Ok(most));
        assert!(read(MAX_MEDIA_BYTES + 6).unwrap_err().contains("expected at most 20971520 bytes"));
        // The text is not decoded before its length is checked.
        let huge = format!("data:image/png;base64,{}", "!".repeat(MAX_MEDIA_BYTES * 3 / 2));
        assert!(image(json!(huge)).unwrap_err().contains("expected at most 20971520 bytes"));
    }

    #[test]
    fn frames_of_a_video_may_be_divided_by_commas() {
        let video = |url: &str| {
            let read: MediaUrl = serde_json::from_value(json!({"url": url})).unwrap();
            read.into_part(MediaKind::Video, "a")
                .map_err(|error| error.body()["error"]["message"].to_string())
        };
        let media = picture(video("data:video/jpeg;base64,/9j/,/9j/4A==,AA").unwrap());
        assert_eq!((media.kind(), media.bytes()), (MediaKind::Video, &b"\xff\xd8\xff\xff\xd8\xff\xe0\0"[..]));
        // The medium as one file is read again.
        assert_eq!(picture(video(&media.data_url()).unwrap()), media);
        for (url, expect) in [
            ("data:video/jpeg;base64,/9j/,", "found an empty text"),
            ("data:video/jpeg;base64,/9j/,?", "found '?' after 0 characters"),
            ("data:image/png;base64,/9j/,/9j/", "found ','"),
            ("data:audio/wav;base64,/9j/", "to be video/…, found"),
        ] {
            let error = video(url).unwrap_err();
            assert!(error.contains(expect), "{url}: {error}");
        }
        let large = "A".repeat(MAX_MEDIA_BYTES / 3 * 4 / 2 + 4);
        let error = video(&format!("data:video/jpeg;base64,{large},{large}")).unwrap_err();
        assert!(error.contains("expected at most 20971520 bytes"), "{error}");
        let animated = picture(video("data:image/gif;base64,R0lGODlh").unwrap());
        assert_eq!((animated.kind(), animated.media_type()), (MediaKind::Video, Some("image/gif")));
    }

    #[test]
    fn sounds_have_their_format() {
        let read = |value: Value| {
            let sound: InputMedia = serde_json::from_value(value).unwrap();
            sound.into_media(MediaKind::Audio, "a").map_err(|error| error.body())
        };
        let media = read(json!({"data": "UklGRg==", "format": "WAV"})).unwrap();
        assert_eq!(
            (media.kind(), media.media_type(), media.bytes()),
            (MediaKind::Audio, Some("audio/wav"), &b"RIFF"[..])
        );
        let error = read(json!({"data": "?", "format": "wav"})).unwrap_err();
        assert_eq!(error["error"]["param"], "a.data", "{error}");
    }
}
