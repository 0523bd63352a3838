//! Images, videos and sounds that a question is about.

use std::{io::Cursor, path::Path};

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use narthex_gateway::{
    Error, Gateway,
    request::{Content, Media, MediaKind, Part},
};
use narthex_image::VideoReader;

use crate::args::MediaArgs;

/// Maximum size of a file in bytes, as in requests to a server.
const MAX_BYTES: u64 = 20 << 20;

/// Reads the files of the arguments: images, videos, and then sounds. Files that cannot be used, and models that do not read them, are reported
/// before a model is loaded, which may take minutes.
pub(super) fn of_args(gateway: &Gateway, model: &str, args: &MediaArgs) -> anyhow::Result<Vec<Media>> {
    let images = args.images.iter().map(|file| (MediaKind::Image, file));
    let videos = args.videos.iter().map(|file| (MediaKind::Video, file));
    let files = images.chain(videos).chain(args.sounds.iter().map(|file| (MediaKind::Audio, file)));
    let media = files.map(|(kind, file)| read(kind, file)).collect::<anyhow::Result<Vec<_>>>()?.concat();
    for kind in MediaKind::ALL.iter().filter(|kind| media.iter().any(|media| media.kind() == **kind)) {
        gateway.check_reads(model, *kind)?;
    }
    Ok(media)
}

/// Reads the file of an image or a sound, or the frames of a video as images.
pub(super) fn read(kind: MediaKind, path: &Path) -> anyhow::Result<Vec<Media>> {
    let what = || format!("cannot read {}", path.display());
    let bytes = narthex_files::read(path, MAX_BYTES).map_err(|source| Error::Io { what: what(), source })?;
    let media = match kind {
        MediaKind::Image => image(bytes).map(|image| vec![image]),
        MediaKind::Audio => {
            let format = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
            sound(bytes, format).map(|sound| vec![sound])
        }
        MediaKind::Video => frames(&bytes),
    };
    media.with_context(what)
}

/// Returns the image in these bytes, after a check of its header.
fn image(bytes: Vec<u8>) -> Result<Media, Error> {
    let decoder = narthex_image::Decoder::open(&bytes).map_err(|error| Error::invalid("image", error))?;
    let media_type = Some(decoder.media_type().to_owned());
    drop(decoder);
    Ok(Media::new(MediaKind::Image, media_type, bytes))
}

/// Returns the frames of the video in these bytes.
fn frames(bytes: &[u8]) -> Result<Vec<Media>, Error> {
    let frames = VideoReader::default().frames(bytes, &|| false);
    let frames = frames.map_err(|error| Error::invalid("video", error))?.into_iter();
    Ok(frames
        .map(|frame| Media::new(MediaKind::Image, Some(frame.media_type.to_owned()), frame.bytes))
        .collect())
}

/// Returns the sound in these bytes, after a check of its header. `format` is the usual extension of its file.
fn sound(bytes: Vec<u8>, format: Option<String>) -> Result<Media, Error> {
    narthex_audio::Decoder::open(Cursor::new(&bytes)).map_err(|error| Error::invalid("audio", error))?;
    Ok(Media::new(MediaKind::Audio, format.map(|format| format!("audio/{format}")), bytes))
}

/// Returns a question about media, which stand before its text.
pub(super) fn question(media: Vec<Media>, text: String) -> Content {
    media.into_iter().map(Part::Media).chain([Part::text(text)]).collect()
}

/// Reads the image of a data URL.
pub(super) fn of_data_url(url: &str) -> anyhow::Result<Media> {
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let (_, data) = data.with_context(|| {
        let start = &url[..url.floor_char_boundary(40)];
        format!("expected an image as a data URL in base64, found {start:?}")
    })?;
    let bytes = BASE64_STANDARD.decode(data).context("expected an image in base64")?;
    Ok(image(bytes)?)
}

/// Reads the sound of an `input_audio` part.
pub(super) fn of_base64(data: &str, format: Option<&str>) -> anyhow::Result<Media> {
    let bytes = BASE64_STANDARD.decode(data).context("expected audio in base64")?;
    Ok(sound(bytes, format.map(str::to_owned))?)
}
