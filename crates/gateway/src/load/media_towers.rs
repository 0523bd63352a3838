//! The towers of a model, which turn media into rows of the decoder's input.

use std::num::NonZeroUsize;

use narthex_device::{DeviceError, packed_weights::PackedWeights, tower::TowerOptions};
use narthex_engine::position::{MediaDigest, MediaRows};
use narthex_spec::{MediaKind, TokenId};
use narthex_text::{
    media::{MediaPlaceholder, MediaSpans},
    template::Media,
    tokenizer::Tokenizer,
};

use super::{packed_weights, request::LoadRequest};
use crate::{
    cancel::Cancel,
    error::Error,
    library::{package::bad_package, package_key::PackageKey},
};

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

/// Opens a tower on the CPU. Its packed weights come from the machine's folder, and are stored there by the first load.
pub(super) fn open_on_cpu<T>(
    request: &LoadRequest<'_>,
    kind: MediaKind,
    open: impl FnOnce(&TowerOptions<'_>) -> Result<T, DeviceError>,
    packed: impl FnOnce(&T) -> Option<&PackedWeights>,
) -> Result<T, Error> {
    let machine = request.store.machine(&request.package.folder, &format!("cpu-{kind}"))?;
    let stored = packed_weights::stored(&machine);
    let threads = request.config.threads;
    let tower = open(&TowerOptions { threads, packed_weights: stored.as_deref() })?;
    packed_weights::store(&machine, packed(&tower).map_or(&[], std::slice::from_ref), request.progress);
    Ok(tower)
}

/// Returns the number of rows of a tower, whose `[rows, width]` must have the width that the decoder takes.
pub(super) fn row_count(
    key: &PackageKey,
    kind: MediaKind,
    [rows, width]: [usize; 2],
    expected: usize,
) -> Result<NonZeroUsize, Error> {
    NonZeroUsize::new(rows).filter(|_| width == expected).ok_or_else(|| {
        let message = format!(
            "expected rows of {expected} elements from its tower for {}, found {rows} of {width}",
            kind.plural()
        );
        bad_package(key, message)
    })
}

/// Returns the text of a token that stands for media.
pub(super) fn token_text(
    key: &PackageKey,
    tokenizer: &Tokenizer,
    kind: MediaKind,
    token: TokenId,
) -> Result<String, Error> {
    tokenizer.id_text(token).ok_or_else(|| {
        let message = format!("its vocabulary has no token {token}, which stands for {}", kind.plural());
        bad_package(key, message)
    })
}

/// Returns the values that a tower computed for a medium as rows.
pub(super) fn media_rows(digest: MediaDigest, width: usize, values: Vec<f32>) -> Result<MediaRows, Error> {
    MediaRows::new(digest, width, values.into()).ok_or_else(|| Error::Invalid {
        param: "messages",
        message: "expected whole rows from the tower that reads the medium".to_owned(),
    })
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
