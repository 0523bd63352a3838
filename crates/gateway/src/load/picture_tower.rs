//! The vision tower of a loaded decoder: decodes pictures, runs the tower on the CPU, and keeps the rows of recent pictures.

use std::{collections::VecDeque, num::NonZeroUsize, time::Duration};

use narthex_device::{
    ep::Device,
    vision::{VisionOptions, VisionTower},
};
use narthex_engine::position::{MediaDigest, MediaRows};
use narthex_image::{Decoder, PictureError, PictureInputs, preprocess, tiles};
use narthex_spec::{
    MediaKind, Sha256, TokenId,
    manifest::{Manifest, PicturePlaceholder, PicturePreprocessing, VisionEntry},
};
use narthex_text::{
    media::{MediaPlaceholder, MediaSpan, MediaSpans},
    template::Media,
    tokenizer::Tokenizer,
};
use parking_lot::Mutex;

use super::{media_towers::MediaTowers, placement, request::LoadRequest};
use crate::{
    cancel::Cancel,
    error::Error,
    library::package::bad_package,
    report::placement::TowerReport,
    turn_queue::{QueueLimits, TurnQueue},
};

/// Delay before a client should retry when too many pictures wait for the tower.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Maximum bytes of the rows that are kept.
const RECENT_BYTES: usize = 64 << 20;

/// Lines around the rows of a picture, as in transformers' `Gemma3Processor` and `Gemma3nProcessor`.
const AROUND: &str = "\n\n";

/// Texts around the rows of inputs, as in transformers' `Idefics3Processor`.
const EDGE: &str = "<fake_token_around_image>";
const WHOLE: &str = "<global-img>";

/// The vision tower of a decoder.
pub(crate) struct PictureTower {
    /// One picture is read at a time, which bounds the memory of decoded pictures.
    queue: TurnQueue<VisionTower>,
    preprocessing: PicturePreprocessing,
    placeholders: [MediaPlaceholder; 1],
    frame: PictureFrame,
    /// Rows of an input of the tower.
    rows: NonZeroUsize,
    /// Digest of the tower and of the preprocessing.
    identity: Sha256,
    report: TowerReport,
    recent: Mutex<RecentRows>,
}

/// Texts around the rows of a picture.
enum PictureFrame {
    /// Around the rows of the only input.
    Single { before: String, after: String },
    /// Before the rows of each input.
    Tiles,
}

/// Rows of the pictures that were read last, the latest one at the end.
#[derive(Default)]
struct RecentRows {
    rows: VecDeque<(MediaDigest, MediaRows)>,
    bytes: usize,
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
        let options = VisionOptions { threads: request.config.threads, packed_weights: None };
        let folder = &request.package.folder;
        let tower = VisionTower::open(request.runtime, folder, manifest, &Device::Cpu, &options)?;
        let report = placement::tower_report(folder, tower.graph(), tower.placement(), MediaKind::Image)?;
        let key = &request.package.key;
        let rows = NonZeroUsize::new(tower.rows()).filter(|_| tower.width() == width);
        let Some(rows) = rows else {
            let message = format!(
                "expected rows of {width} elements from its vision tower, found {} of {}",
                tower.rows(),
                tower.width()
            );
            return Err(bad_package(key, message));
        };

        let text = |token: TokenId| {
            tokenizer.id_text(token).ok_or_else(|| {
                bad_package(key, format!("its vocabulary has no token {token}, which stands for pictures"))
            })
        };
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
        let limits = QueueLimits { waiting: request.config.max_queue, retry_after: RETRY_AFTER };
        Ok(Some(Self {
            queue: TurnQueue::new(tower, limits),
            preprocessing: entry.preprocessing,
            placeholders: [MediaPlaceholder { kind: MediaKind::Image, text: written, token }],
            frame,
            rows,
            identity: identity(manifest, entry),
            report,
            recent: Mutex::default(),
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
        MediaRows::new(digest, tower.width(), values.into()).ok_or_else(|| {
            let message = "expected whole rows of a picture from the vision tower".to_owned();
            Error::Invalid { param: "messages", message }
        })
    }
}

impl MediaTowers for PictureTower {
    fn placeholders(&self) -> &[MediaPlaceholder] {
        &self.placeholders
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
        let digest = Sha256::of(&[self.identity.0, media.digest().0].concat()).0;
        if let Some(rows) = self.recent.lock().get(digest) {
            return Ok(rows);
        }
        self.queue.enter(cancel)?.turn(|tower| {
            // Another request may have read the same picture meanwhile.
            if let Some(rows) = self.recent.lock().get(digest) {
                return Ok(rows);
            }
            let rows = self.compute(tower, media, digest, cancel)?;
            self.recent.lock().insert(digest, &rows);
            Ok(rows)
        })
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

impl RecentRows {
    /// Returns the rows of a picture, which becomes the latest one.
    fn get(&mut self, digest: MediaDigest) -> Option<MediaRows> {
        let index = self.rows.iter().position(|(other, _)| *other == digest)?;
        let entry = self.rows.remove(index)?;
        let rows = entry.1.clone();
        self.rows.push_back(entry);
        Some(rows)
    }

    /// Adds the rows of a picture that has none here, and removes the oldest ones beyond [`RECENT_BYTES`].
    fn insert(&mut self, digest: MediaDigest, rows: &MediaRows) {
        self.bytes += bytes(rows);
        self.rows.push_back((digest, rows.clone()));
        while self.bytes > RECENT_BYTES
            && let Some((_, oldest)) = self.rows.pop_front()
        {
            self.bytes -= bytes(&oldest);
        }
    }
}

fn bytes(rows: &MediaRows) -> usize {
    rows.rows() * rows.width() * size_of::<f32>()
}

/// Returns the digest of the tower's weights and of the preprocessing, which, with the picture, determine its rows.
fn identity(manifest: &Manifest, entry: &VisionEntry) -> Sha256 {
    let files = entry.graphs.iter().filter_map(|graph| manifest.files.get(&graph.file));
    let digests: Vec<u8> = files.flat_map(|file| file.sha256.0).collect();
    // Plain numbers and names always serialise.
    let settings = serde_json::to_vec(&entry.preprocessing).unwrap_or_default();
    Sha256::of(&[digests, settings].concat())
}

fn unreadable(error: PictureError) -> Error {
    Error::invalid("messages", error)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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

    #[test]
    fn the_oldest_rows_leave_first() {
        let rows = |byte: u8, count: usize| {
            let values: Arc<[f32]> = vec![0.0; count].into();
            MediaRows::new([byte; 32], count, values).unwrap()
        };
        let quarter = RECENT_BYTES / size_of::<f32>() / 4;
        let mut recent = RecentRows::default();
        for byte in 1..=4 {
            recent.insert([byte; 32], &rows(byte, quarter));
        }
        assert!(recent.get([1; 32]).is_some(), "the budget holds all four");
        recent.insert([5; 32], &rows(5, quarter));
        assert!(recent.get([2; 32]).is_none(), "the second was used least recently");
        for byte in [1, 3, 4, 5] {
            assert!(recent.get([byte; 32]).is_some(), "{byte}");
        }
        assert_eq!(recent.bytes, RECENT_BYTES);
        // Rows that alone exceed the budget are not kept.
        recent.insert([6; 32], &rows(6, RECENT_BYTES / size_of::<f32>() + 1));
        assert_eq!((recent.bytes, recent.rows.len()), (0, 0));
    }
}
