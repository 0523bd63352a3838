//! The vision tower of a loaded decoder: decodes pictures, runs the tower on the CPU, and keeps the rows of recent pictures.

use std::num::NonZeroUsize;

use narthex_device::{ep::Device, vision::VisionTower};
use narthex_engine::position::{MediaDigest, MediaRows};
use narthex_image::{Decoder, PictureError, PictureInputs, preprocess, tiles};
use narthex_spec::{
    MediaKind,
    manifest::{PicturePlaceholder, PicturePreprocessing},
};
use narthex_text::{
    media::{MediaPlaceholder, MediaSpan, MediaSpans},
    template::Media,
    tokenizer::Tokenizer,
};

use super::{
    media_towers::{MediaTower, media_rows, open_on_cpu, row_count, token_text},
    placement,
    request::LoadRequest,
    tower_queue::TowerQueue,
};
use crate::{cancel::Cancel, error::Error, report::placement::TowerReport};

/// Lines around the rows of a picture, as in transformers' `Gemma3Processor` and `Gemma3nProcessor`.
const AROUND: &str = "\n\n";

/// Texts around the rows of inputs, as in transformers' `Idefics3Processor`.
const EDGE: &str = "<fake_token_around_image>";
const WHOLE: &str = "<global-img>";

/// The vision tower of a decoder.
pub(crate) struct PictureTower {
    queue: TowerQueue<VisionTower>,
    preprocessing: PicturePreprocessing,
    placeholder: MediaPlaceholder,
    frame: PictureFrame,
    /// Rows of an input of the tower.
    rows: NonZeroUsize,
    report: TowerReport,
}

/// Texts around the rows of a picture.
enum PictureFrame {
    /// Around the rows of the only input.
    Single { before: String, after: String },
    /// Before the rows of each input.
    Tiles,
}

impl PictureTower {
    /// Opens the tower of a package, or returns `None` if the package has no tower. `width` is the number of elements of a row
    /// that the decoder takes.
    pub(crate) fn open(
        request: &LoadRequest<'_>,
        tokenizer: &Tokenizer,
        width: usize,
    ) -> Result<Option<Self>, Error> {
        let manifest = request.manifest();
        let Some(entry) = &manifest.vision else { return Ok(None) };
        let folder = &request.package.folder;
        let kind = MediaKind::Image;
        let tower = open_on_cpu(
            request,
            kind,
            |options| VisionTower::open(request.runtime, folder, manifest, &Device::Cpu, options),
            VisionTower::packed_weights,
        )?;
        let report = placement::tower_report(folder, tower.graph(), tower.placement(), kind)?;
        let key = &request.package.key;
        let rows = row_count(key, kind, [tower.rows(), tower.width()], width)?;

        let text = |token| token_text(key, tokenizer, kind, token);
        let (written, frame) = match entry.placeholder {
            PicturePlaceholder::Framed { start, end, .. } => {
                let start = text(start)?;
                let before = format!("{AROUND}{start}");
                (start, PictureFrame::Single { before, after: format!("{}{AROUND}", text(end)?) })
            }
            PicturePlaceholder::Opened { start, row } => {
                let before = format!("{AROUND}{}", text(start)?);
                (text(row)?, PictureFrame::Single { before, after: AROUND.to_owned() })
            }
            PicturePlaceholder::Tiled { row } => (text(row)?, PictureFrame::Tiles),
        };
        let token = entry.placeholder.row();
        let waiting = request.config.max_queue;
        Ok(Some(Self {
            queue: TowerQueue::new(tower, manifest, &entry.preprocessing, waiting),
            preprocessing: entry.preprocessing,
            placeholder: MediaPlaceholder { kind, text: written, token },
            frame,
            rows,
            report,
        }))
    }

    /// Returns where the tower runs.
    pub(crate) fn report(&self) -> &TowerReport {
        &self.report
    }

    /// Decodes a picture and runs the tower.
    fn compute(
        &self,
        tower: &mut VisionTower,
        media: &Media,
        digest: MediaDigest,
        cancel: &Cancel,
    ) -> Result<MediaRows, Error> {
        let picture = Decoder::open(media.bytes()).and_then(Decoder::decode).map_err(unreadable)?;
        let PictureInputs { inputs, .. } = preprocess(&picture, &self.preprocessing);
        drop(picture);
        let mut values = Vec::with_capacity(inputs.len() * tower.rows() * tower.width());
        for pixels in inputs {
            cancel.check()?;
            values.extend(tower.encode(pixels)?);
        }
        media_rows(digest, tower.width(), values)
    }
}

impl MediaTower for PictureTower {
    fn placeholder(&self) -> &MediaPlaceholder {
        &self.placeholder
    }

    fn spans(&self, media: &Media) -> Result<MediaSpans, Error> {
        let mut decoder = Decoder::open(media.bytes()).map_err(unreadable)?;
        let spans = match &self.frame {
            PictureFrame::Single { before, after } => vec![
                MediaSpan::Text(before.clone()),
                MediaSpan::Rows(self.rows),
                MediaSpan::Text(after.clone()),
            ],
            PictureFrame::Tiles => {
                let size = decoder.turned_size().map(|side| side as usize);
                tile_spans(tiles(size, &self.preprocessing), self.rows)
            }
        };
        Ok(MediaSpans { kind: MediaKind::Image, spans })
    }

    fn has_ended(&self) -> bool {
        self.queue.has_ended()
    }

    fn rows(&self, media: &Media, cancel: &Cancel) -> Result<MediaRows, Error> {
        self.queue.rows(media, cancel, |tower, digest| self.compute(tower, media, digest, cancel))
    }
}

/// Returns the parts of a prompt for a picture in tiles: the tiles row by row, and then the whole picture.
fn tile_spans([rows, columns]: [usize; 2], count: NonZeroUsize) -> Vec<MediaSpan> {
    let mut spans = Vec::with_capacity(2 * rows * columns + 3);
    let mut text = String::new();
    for row in 1..=rows {
        for column in 1..=columns {
            text.push_str(&format!("{EDGE}<row_{row}_col_{column}>"));
            spans.extend([MediaSpan::Text(std::mem::take(&mut text)), MediaSpan::Rows(count)]);
        }
        text.push('\n');
    }
    if rows > 0 {
        text.push('\n');
    }
    text.push_str(EDGE);
    text.push_str(WHOLE);
    spans.extend([MediaSpan::Text(text), MediaSpan::Rows(count), MediaSpan::Text(EDGE.to_owned())]);
    spans
}

fn unreadable(error: PictureError) -> Error {
    Error::invalid("messages", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_written_as_by_transformers() {
        let written = |tiles| {
            let spans = tile_spans(tiles, NonZeroUsize::new(2).unwrap());
            let texts = spans.into_iter().map(|span| match span {
                MediaSpan::Text(text) => text.replace(EDGE, "|").replace(WHOLE, "*"),
                MediaSpan::Rows(count) => ".".repeat(count.get()),
            });
            texts.collect::<String>()
        };
        assert_eq!(written([0, 0]), "|*..|");
        assert_eq!(written([1, 2]), "|<row_1_col_1>..|<row_1_col_2>..\n\n|*..|");
        assert_eq!(written([2, 1]), "|<row_1_col_1>..\n|<row_2_col_1>..\n\n|*..|");
    }
}
