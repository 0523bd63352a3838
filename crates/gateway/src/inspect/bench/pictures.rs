//! Times of a vision tower, and of questions about pictures.

use std::time::Instant;

use narthex_image::Picture;
use narthex_spec::{
    MediaKind, ProgressSink, Scheme,
    progress::{JobSteps, Stage, Unit},
};
use narthex_text::{
    media::MediaSpan,
    template::{Content, Media, Message, Part, Role},
};
use serde::Serialize;

use super::{
    LoadedForBench, Machine, Spread,
    overhead::{Question, ask},
    round,
};
use crate::{
    cancel::Cancel, error::Error, gateway::Gateway, load::media_towers::MediaTower,
    report::placement::TowerReport, serve::media::not_read,
};

/// Width and height of the pictures in pixels.
const SIZE: [usize; 2] = [1024, 768];

/// Words of every question.
const QUESTION: &str = "which colours do the walls and the roof of this house have?";

/// Figures of a model that reads pictures.
#[derive(Debug, Clone, Serialize)]
pub struct PictureReport {
    /// Name of the package.
    pub model: String,
    /// Weight scheme.
    pub scheme: Scheme,
    /// Device of the decoder.
    pub device: String,
    /// Machine and versions.
    pub machine: Machine,
    /// Place and size of the vision tower.
    pub tower: TowerReport,
    /// Width and height of the pictures in pixels.
    pub size: [usize; 2],
    /// Rows of a picture in the prompt.
    pub rows: usize,
    /// Measured rounds.
    pub rounds: usize,
    /// Milliseconds from the file of a picture to its rows.
    pub read_ms: Spread,
    /// Milliseconds from a question about a new picture to the first token of the answer.
    pub first_question_ms: Spread,
    /// Milliseconds from a further question about it to the first token.
    pub next_question_ms: Spread,
    /// Milliseconds from a question without a picture to the first token.
    pub text_ms: Spread,
}

/// Times of a round in milliseconds.
struct PictureRound {
    read: f64,
    first_question: f64,
    next_question: f64,
    text: f64,
}

/// A model whose tower is measured.
struct PictureBench<'a> {
    gateway: &'a Gateway,
    loaded: &'a LoadedForBench,
    tower: &'a dyn MediaTower,
    cancel: &'a Cancel,
}

impl Gateway {
    /// Measures the vision tower of a model, and questions about pictures. The model stays in memory. Fetches and compiles it
    /// first if it is not installed.
    ///
    /// # Errors
    /// [`Error::MediaNotRead`] for a model that does not read images, and those of [`Gateway::bench`].
    pub fn bench_pictures(
        &self,
        model: &str,
        rounds: usize,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<PictureReport, Error> {
        if rounds == 0 {
            return Err(Error::invalid("rounds", "expected at least 1, found 0"));
        }
        self.check_reads(model, MediaKind::Image)?;
        let steps = JobSteps::new(progress);
        let loaded = self.load_for_bench(model, progress, &steps, cancel)?;
        let key = &loaded.key;
        let tower = loaded.model.loaded.towers().reader(MediaKind::Image);
        let tower = tower.ok_or_else(|| not_read(&key.name, MediaKind::Image))?;
        let placement = loaded.model.loaded.status().placement;
        let towers = placement.into_iter().flat_map(|placement| placement.towers);
        let report = towers.into_iter().find(|tower| tower.reads == MediaKind::Image);
        let report = report.ok_or_else(|| not_read(&key.name, MediaKind::Image))?;
        steps.begin(format!("Measuring {}", key.name));
        let bench = PictureBench { gateway: self, loaded: &loaded, tower, cancel };
        let measured = bench.rounds(rounds, progress)?;

        let spread = |figure: fn(&PictureRound) -> f64| Spread::of(measured.iter().map(figure).collect());
        Ok(PictureReport {
            model: key.name.to_string(),
            scheme: key.scheme,
            device: loaded.model.loaded.ran_on().device,
            machine: Machine::here(loaded.runtime, self.library().config.threads),
            tower: report,
            size: SIZE,
            rows: bench.rows()?,
            rounds,
            read_ms: spread(|round| round.read),
            first_question_ms: spread(|round| round.first_question),
            next_question_ms: spread(|round| round.next_question),
            text_ms: spread(|round| round.text),
        })
    }
}

impl PictureBench<'_> {
    fn rounds(&self, count: usize, progress: &dyn ProgressSink) -> Result<Vec<PictureRound>, Error> {
        let stage = Stage::start(progress, "Measuring", Unit::Items, Some(count as u64));
        let mut rounds = Vec::with_capacity(count);
        for number in 0..=count {
            let round = self.round(number)?;
            // The first round warms caches and grows buffers.
            if number > 0 {
                rounds.push(round);
                stage.advance(number as u64);
            }
        }
        Ok(rounds)
    }

    fn round(&self, number: usize) -> Result<PictureRound, Error> {
        let alone = picture(2 * number)?;
        let shown = Part::Media(picture(2 * number + 1)?);
        round::cool_down();
        let begun = Instant::now();
        self.tower.rows(&alone, self.cancel)?;
        let read = begun.elapsed().as_secs_f64() * 1e3;

        let first_question = self.ask(Some(&shown), format!("First {number}: {QUESTION}"))?;
        let next_question = self.ask(Some(&shown), format!("Then {number}: {QUESTION}"))?;
        let text = self.ask(None, format!("Text {number}: {QUESTION}"))?;
        Ok(PictureRound { read, first_question, next_question, text })
    }

    /// Returns the milliseconds to the first token of an answer.
    fn ask(&self, picture: Option<&Part>, text: String) -> Result<f64, Error> {
        self.cancel.check()?;
        let content: Content = picture.cloned().into_iter().chain([Part::text(text)]).collect();
        let messages = vec![Message::new(Role::User, content)];
        let question = Question { model: &self.loaded.id, loaded: &self.loaded.model.loaded, tokens: 1 };
        Ok(ask(self.gateway, question, messages)?.total_ms())
    }

    /// Returns the number of rows of a picture.
    fn rows(&self) -> Result<usize, Error> {
        let spans = self.tower.spans(&picture(0)?)?.spans.into_iter();
        Ok(spans
            .map(|span| match span {
                MediaSpan::Rows(rows) => rows.get(),
                MediaSpan::Text(_) => 0,
            })
            .sum())
    }
}

/// Returns a picture of slopes that has its number in a corner, so that no two are equal.
fn picture(number: usize) -> Result<Media, Error> {
    let [width, height] = SIZE;
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| [x / 4, y / 3, (x + y) / 7]));
    let mut rgb: Vec<u8> = pixels.flatten().map(|value| value as u8).collect();
    rgb[..8].copy_from_slice(&(number as u64).to_le_bytes());
    let picture = Picture::new(width, height, rgb);
    let png = picture.map(|picture| picture.to_png()).transpose();
    let png = png.map_err(|error| Error::invalid("model", error))?.unwrap_or_default();
    Ok(Media::new(MediaKind::Image, Some("image/png".to_owned()), png))
}
