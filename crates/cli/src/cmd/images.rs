//! Images that a question is about.

use std::path::Path;

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use narthex_gateway::{
    Error,
    request::{Content, Media, MediaKind, Part},
};
use narthex_image::Decoder;

/// Maximum size of a file in bytes, as in requests to a server.
const MAX_BYTES: u64 = 20 << 20;

/// Reads the file of an image. An unusable one is reported before a model is loaded, which may take minutes.
pub(super) fn read(path: &Path) -> anyhow::Result<Media> {
    let what = || format!("cannot read {}", path.display());
    let bytes = narthex_files::read(path, MAX_BYTES).map_err(|source| Error::Io { what: what(), source })?;
    of_bytes(bytes).with_context(what)
}

/// Returns the image in these bytes, after a check of its header.
fn of_bytes(bytes: Vec<u8>) -> Result<Media, Error> {
    let media_type = Decoder::open(&bytes).map_err(|error| Error::invalid("image", error))?.media_type();
    Ok(Media::new(MediaKind::Image, Some(media_type.to_owned()), bytes))
}

/// Returns a question about images, which stand before its text.
pub(super) fn question(images: Vec<Media>, text: String) -> Content {
    images.into_iter().map(Part::Media).chain([Part::text(text)]).collect()
}

/// Reads the image of a data URL.
pub(super) fn of_data_url(url: &str) -> anyhow::Result<Media> {
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let (_, data) = data.with_context(|| {
        let start = &url[..url.floor_char_boundary(40)];
        format!("expected an image as a data URL in base64, found {start:?}")
    })?;
    let bytes = BASE64_STANDARD.decode(data).context("expected an image in base64")?;
    Ok(of_bytes(bytes)?)
}
