//! The audio tower of a loaded decoder: decodes sounds, runs the tower on the CPU, and keeps the rows of recent sounds.

use std::{io::Cursor, num::NonZeroUsize};

use narthex_audio::{AudioError, Decoder, SPEECH_RATE, log_mel_frames};
use narthex_device::{audio::AudioTower, ep::Device};
use narthex_engine::position::{MediaDigest, MediaRows};
use narthex_spec::{
    MediaKind,
    manifest::{SoundPlaceholder, SoundPreprocessing},
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
use crate::{cancel::Cancel, error::Error, library::package::bad_package, report::placement::TowerReport};

/// Lines around the rows of a sound, as in transformers' `Gemma3nProcessor`.
const AROUND: &str = "\n\n";

/// The audio tower of a decoder.
pub(crate) struct SoundTower {
    queue: TowerQueue<AudioTower>,
    preprocessing: SoundPreprocessing,
    placeholder: MediaPlaceholder,
    /// Text before the rows of a sound.
    before: String,
    /// Rows of a sound.
    rows: NonZeroUsize,
    report: TowerReport,
}

impl SoundTower {
    /// Opens the tower of a package, or returns `None` if the package has no tower. `width` is the number of elements of a row
    /// that the decoder takes.
    pub(crate) fn open(
        request: &LoadRequest<'_>,
        tokenizer: &Tokenizer,
        width: usize,
    ) -> Result<Option<Self>, Error> {
        let manifest = request.manifest();
        let Some(entry) = &manifest.audio else { return Ok(None) };
        let folder = &request.package.folder;
        let kind = MediaKind::Audio;
        let tower = open_on_cpu(
            request,
            kind,
            |options| AudioTower::open(request.runtime, folder, manifest, &Device::Cpu, options),
            AudioTower::packed_weights,
        )?;
        let report = placement::tower_report(folder, tower.graph(), tower.placement(), kind)?;
        let key = &request.package.key;
        let rows = row_count(key, kind, [tower.rows(), tower.width()], width)?;
        let rate = entry.preprocessing.sample_rate;
        if rate != SPEECH_RATE as usize {
            let message = format!("expected a sample rate of sounds of {SPEECH_RATE} Hz, found {rate}");
            return Err(bad_package(key, message));
        }

        let SoundPlaceholder { start, row } = entry.placeholder;
        let before = format!("{AROUND}{}", token_text(key, tokenizer, kind, start)?);
        let text = token_text(key, tokenizer, kind, row)?;
        let placeholder = MediaPlaceholder { kind, text, token: row };
        let waiting = request.config.max_queue;
        Ok(Some(Self {
            queue: TowerQueue::new(tower, manifest, &entry.preprocessing, waiting),
            preprocessing: entry.preprocessing.clone(),
            placeholder,
            before,
            rows,
            report,
        }))
    }

    /// Returns where the tower runs.
    pub(crate) fn report(&self) -> &TowerReport {
        &self.report
    }

    /// Decodes a sound and runs the tower.
    fn compute(
        &self,
        tower: &mut AudioTower,
        media: &Media,
        digest: MediaDigest,
        cancel: &Cancel,
    ) -> Result<MediaRows, Error> {
        let samples = samples(media.bytes(), &self.preprocessing, cancel)?;
        let features = log_mel_frames(&samples, &self.preprocessing);
        drop(samples);
        cancel.check()?;
        let values = tower.encode(features)?;
        media_rows(digest, tower.width(), values)
    }
}

impl MediaTower for SoundTower {
    fn placeholder(&self) -> &MediaPlaceholder {
        &self.placeholder
    }

    fn spans(&self, media: &Media) -> Result<MediaSpans, Error> {
        Decoder::open(Cursor::new(media.bytes())).map_err(unreadable)?;
        let spans = vec![
            MediaSpan::Text(self.before.clone()),
            MediaSpan::Rows(self.rows),
            MediaSpan::Text(AROUND.to_owned()),
        ];
        Ok(MediaSpans { kind: MediaKind::Audio, spans })
    }

    fn has_ended(&self) -> bool {
        self.queue.has_ended()
    }

    fn rows(&self, media: &Media, cancel: &Cancel) -> Result<MediaRows, Error> {
        self.queue.rows(media, cancel, |tower, digest| self.compute(tower, media, digest, cancel))
    }
}

/// Samples beyond the maximum that are cut, a tenth of a second: encoders extend a sound to whole packets.
const PADDED_SAMPLES: usize = SPEECH_RATE as usize / 10;

/// Returns the samples of a file of sound. Fails once it has more than a sound may have.
fn samples(bytes: &[u8], spec: &SoundPreprocessing, cancel: &Cancel) -> Result<Vec<f32>, Error> {
    let mut samples = Vec::new();
    for chunk in Decoder::open(Cursor::new(bytes)).map_err(unreadable)? {
        cancel.check()?;
        samples.extend(chunk.map_err(unreadable)?);
        if samples.len() > spec.max_samples + PADDED_SAMPLES {
            let message = format!(
                "expected sounds of at most {} seconds, found a longer one; divide it, or turn its speech into text with \
                 POST /v1/audio/transcriptions",
                spec.max_seconds()
            );
            return Err(Error::Invalid { param: "messages", message });
        }
    }
    samples.truncate(spec.max_samples);
    Ok(samples)
}

fn unreadable(error: AudioError) -> Error {
    Error::invalid("messages", error)
}
