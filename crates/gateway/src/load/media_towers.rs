//! The towers of a model, which turn media into rows of the decoder's input.

use narthex_engine::position::MediaRows;
use narthex_spec::MediaKind;
use narthex_text::{
    media::{MediaPlaceholder, MediaSpans},
    template::Media,
};

use crate::{cancel::Cancel, error::Error};

/// The interface of a tower, which reads media of one kind.
pub(crate) trait MediaTower: Send + Sync {
    /// Returns the placeholder of its media.
    fn placeholder(&self) -> &MediaPlaceholder;

    /// Returns the parts of a prompt that stand for a medium. Reads no more of it than its header.
    fn spans(&self, media: &Media) -> Result<MediaSpans, Error>;

    /// Returns whether the tower has panicked, so that the model must be loaded again.
    fn has_ended(&self) -> bool;

    /// Returns the rows of a medium, as many as its spans have. Ends with [`Error::Cancelled`] once `cancel` is set.
    fn rows(&self, media: &Media, cancel: &Cancel) -> Result<MediaRows, Error>;
}

/// The towers of a model.
#[derive(Default)]
pub(crate) struct MediaTowers {
    towers: Vec<Box<dyn MediaTower>>,
    placeholders: Vec<MediaPlaceholder>,
}

impl MediaTowers {
    /// Adds a tower.
    pub(crate) fn push(&mut self, tower: impl MediaTower + 'static) {
        self.placeholders.push(tower.placeholder().clone());
        self.towers.push(Box::new(tower));
    }

    /// Returns the placeholder of each kind that the model reads.
    pub(crate) fn placeholders(&self) -> &[MediaPlaceholder] {
        &self.placeholders
    }

    /// Returns the tower that reads media of a kind.
    pub(crate) fn reader(&self, kind: MediaKind) -> Option<&dyn MediaTower> {
        self.towers.iter().find(|tower| tower.placeholder().kind == kind).map(AsRef::as_ref)
    }

    /// Returns whether a tower has panicked, so that the model must be loaded again.
    pub(crate) fn has_ended(&self) -> bool {
        self.towers.iter().any(|tower| tower.has_ended())
    }
}
