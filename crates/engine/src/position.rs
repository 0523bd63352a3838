//! Input of a sequence's positions: tokens, and rows of media, such as pictures or sounds.
//!
//! Keys and values follow from a position and those before it. Wherever they are reused, whole positions are compared.
//! Rows of two media are different positions, also if both media have the same size.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc};

use narthex_spec::TokenId;
use parking_lot::Mutex;

/// Number of media whose digests are remembered. A medium that was forgotten gets a new id, and its earlier keys and
/// values are not found again.
const REMEMBERED: usize = 1 << 16;

/// Digest of everything that the rows of a medium depend on.
pub type MediaDigest = [u8; 32];

/// A medium in this process. Two media with different digests never have the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MediaId(NonZeroU32);

/// Media of this process. Ids are never used twice.
struct MediaTable {
    ids: BTreeMap<MediaDigest, MediaId>,
    digests: BTreeMap<MediaId, MediaDigest>,
    /// The last id.
    last: u32,
}

static MEDIA: Mutex<MediaTable> =
    Mutex::new(MediaTable { ids: BTreeMap::new(), digests: BTreeMap::new(), last: 0 });

impl MediaTable {
    /// Returns the id of a digest; `None` if no number is left.
    fn id(&mut self, digest: MediaDigest) -> Option<MediaId> {
        if let Some(&id) = self.ids.get(&digest) {
            return Some(id);
        }
        let id = MediaId(NonZeroU32::new(self.last.checked_add(1)?)?);
        self.last = id.0.get();
        if self.digests.len() >= REMEMBERED
            && let Some((_, oldest)) = self.digests.pop_first()
        {
            self.ids.remove(&oldest);
        }
        self.ids.insert(digest, id);
        self.digests.insert(id, digest);
        Some(id)
    }
}

impl MediaId {
    /// Returns the digest of the medium, if it is remembered.
    pub fn digest(self) -> Option<MediaDigest> {
        MEDIA.lock().digests.get(&self).copied()
    }
}

/// Input of one position of a sequence: a token, or a row of a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    media: Option<MediaId>,
    /// The token, or the number of the row.
    index: u32,
}

const _: () = assert!(size_of::<Position>() == 8);

impl Position {
    /// Returns the position of a token.
    pub const fn token(token: TokenId) -> Self {
        Self { media: None, index: token }
    }

    /// Returns the positions of tokens.
    pub fn of_tokens(tokens: &[TokenId]) -> Vec<Self> {
        tokens.iter().copied().map(Self::token).collect()
    }

    /// Returns the token, unless the position is a row of a medium.
    pub const fn as_token(self) -> Option<TokenId> {
        match self.media {
            None => Some(self.index),
            Some(_) => None,
        }
    }

    /// Returns the medium and the number of its row, unless the position is a token.
    pub fn as_row(self) -> Option<(MediaId, usize)> {
        Some((self.media?, self.index as usize))
    }
}

/// Returns the number of positions at the start of `positions` that are all tokens, or consecutive rows of one medium.
pub fn same_kind(positions: &[Position]) -> usize {
    match positions.first().and_then(|first| first.as_row()) {
        None => positions.iter().take_while(|position| position.media.is_none()).count(),
        Some((id, first)) => {
            let rows = positions.iter().zip(first..);
            rows.take_while(|(position, row)| position.as_row() == Some((id, *row))).count()
        }
    }
}

/// Embedding rows of a medium. Clones share the rows.
#[derive(Debug, Clone)]
pub struct MediaRows {
    id: MediaId,
    width: usize,
    values: Arc<[f32]>,
}

impl PartialEq for MediaRows {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.width, self.values.len()) == (other.id, other.width, other.values.len())
    }
}

impl Eq for MediaRows {}

impl MediaRows {
    /// Creates the rows of a medium, `[rows, width]`. Equal digests state that all values are equal. Returns `None` if
    /// the values are not whole rows, or too many.
    pub fn new(digest: MediaDigest, width: usize, values: Arc<[f32]>) -> Option<Self> {
        if width == 0 || !values.len().is_multiple_of(width) || u32::try_from(values.len() / width).is_err() {
            return None;
        }
        let id = MEDIA.lock().id(digest)?;
        Some(Self { id, width, values })
    }

    /// Returns the medium.
    pub fn id(&self) -> MediaId {
        self.id
    }

    /// Returns the number of elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.width
    }

    /// Returns a row.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        self.values.chunks_exact(self.width).nth(index)
    }

    /// Returns the positions of all rows.
    pub fn positions(&self) -> impl Iterator<Item = Position> {
        (0..self.rows() as u32).map(|index| Position { media: Some(self.id), index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_from_digests_and_are_never_used_twice() {
        let mut table = MediaTable { ids: BTreeMap::new(), digests: BTreeMap::new(), last: 0 };
        let digest = |number: usize| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_le_bytes());
            digest
        };
        let first: Vec<MediaId> =
            (0..REMEMBERED + 10).map(|number| table.id(digest(number)).unwrap()).collect();
        assert!(first.is_sorted_by(|a, b| a < b));
        assert_eq!(table.id(digest(10)), Some(first[10]));
        assert_eq!((table.ids.len(), table.digests.len()), (REMEMBERED, REMEMBERED));
        // The first medium was forgotten, and is a new one now.
        assert!(table.id(digest(0)).unwrap() > first[REMEMBERED + 9]);
        table.last = u32::MAX;
        assert_eq!(table.id(digest(REMEMBERED + 20)), None);
    }

    #[test]
    fn rows_are_whole_and_positions_name_their_medium() {
        let rows = |number: u8, count: usize| MediaRows::new([number; 32], 3, vec![0.5; count].into());
        assert!(rows(1, 7).is_none() && MediaRows::new([1; 32], 0, Vec::new().into()).is_none());
        let (first, second) = (rows(1, 6).unwrap(), rows(2, 6).unwrap());
        let positions: Vec<Position> = first.positions().collect();
        assert_eq!(positions.len(), 2);
        assert_eq!(positions[1].as_row(), Some((first.id(), 1)));
        assert!(positions.iter().zip(second.positions()).all(|(a, b)| *a != b));
        assert_ne!(positions[1], Position::token(1));
        assert_eq!((Position::token(7).as_token(), positions[0].as_token()), (Some(7), None));
        assert_eq!((first.row(1).unwrap().len(), first.row(2)), (3, None));
        let mixed: Vec<Position> = [Position::token(1), Position::token(2)]
            .into_iter()
            .chain(first.positions())
            .chain(first.positions())
            .chain(second.positions().skip(1))
            .collect();
        let kinds = [0, 1, 2, 3, 4, 6, 7].map(|start| same_kind(&mixed[start..]));
        assert_eq!(kinds, [2, 1, 2, 1, 2, 1, 0]);
        assert_eq!(first.id().digest(), Some([1; 32]));
    }
}
