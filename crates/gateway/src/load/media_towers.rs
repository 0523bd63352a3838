//! The interface of a model's towers.

use narthex_engine::position::MediaRows;
use narthex_text::{
    media::{MediaPlaceholder, MediaSpans},
    template::Media,
};

use crate::{cancel::Cancel, error::Error};

/// The towers of a model, which turn media into rows of the decoder's input.
pub(crate) trait MediaTowers: Send + Sync {
    /// Returns the placeholder of each kind that the model reads.
    fn placeholders(&self) -> &[MediaPlaceholder];

    /// Returns the parts of a prompt that stand for a medium. Reads no more of it than its size.
    fn spans(&self, media: &Media) -> Result<MediaSpans, Error>;

    /// Returns whether a tower has panicked, so that the model must be loaded again.
    fn has_ended(&self) -> bool;

    /// Returns the rows of a medium, as many as its spans have. Ends with [`Error::Cancelled`] once `cancel` is set.
    fn rows(&self, media: &Media, cancel: &Cancel) -> Result<MediaRows, Error>;
}
