//! A tower that reads media in turns, and the rows of those that it read last.

use std::{collections::VecDeque, time::Duration};

use narthex_engine::position::{MediaDigest, MediaRows};
use narthex_spec::{Sha256, manifest::Manifest};
use narthex_text::template::Media;
use parking_lot::Mutex;
use serde::Serialize;

use crate::{
    cancel::Cancel,
    error::Error,
    turn_queue::{QueueLimits, TurnQueue},
};

/// Delay before a client should retry when too many media wait for a tower.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Maximum bytes of the rows that are kept.
const RECENT_BYTES: usize = 64 << 20;

/// A tower that reads one medium at a time, which bounds the memory of decoded media, and the rows of recent ones.
pub(crate) struct TowerQueue<T> {
    queue: TurnQueue<T>,
    /// Digest of the tower and of its preprocessing.
    identity: Sha256,
    recent: Mutex<RecentRows>,
}

impl<T> TowerQueue<T> {
    /// Creates a queue of at most `waiting` media. The files of the package and the preprocessing, with a medium, determine
    /// its rows.
    pub(crate) fn new(tower: T, manifest: &Manifest, preprocessing: &impl Serialize, waiting: usize) -> Self {
        Self {
            queue: TurnQueue::new(tower, QueueLimits { waiting, retry_after: RETRY_AFTER }),
            identity: identity(manifest, preprocessing),
            recent: Mutex::default(),
        }
    }

    /// Returns whether the tower has panicked.
    pub(crate) fn has_ended(&self) -> bool {
        self.queue.has_ended()
    }

    /// Returns the rows of a medium, from memory or computed by `compute` with the digest of the rows.
    pub(crate) fn rows(
        &self,
        media: &Media,
        cancel: &Cancel,
        compute: impl FnOnce(&mut T, MediaDigest) -> Result<MediaRows, Error>,
    ) -> Result<MediaRows, Error> {
        let digest = Sha256::of(&[self.identity.0, media.digest().0].concat()).0;
        if let Some(rows) = self.recent.lock().get(digest) {
            return Ok(rows);
        }
        self.queue.enter(cancel)?.turn(|tower| {
            // Another request may have read the same medium meanwhile.
            if let Some(rows) = self.recent.lock().get(digest) {
                return Ok(rows);
            }
            let rows = compute(tower, digest)?;
            self.recent.lock().insert(digest, &rows);
            Ok(rows)
        })
    }
}

/// Returns the digest of a package's files and of a tower's preprocessing.
fn identity(manifest: &Manifest, preprocessing: &impl Serialize) -> Sha256 {
    let digests: Vec<u8> = manifest.files.values().flat_map(|file| file.sha256.0).collect();
    // Plain numbers and names always serialise.
    let settings = serde_json::to_vec(preprocessing).unwrap_or_default();
    Sha256::of(&[digests, settings].concat())
}

/// Rows of the media that were read last, the latest one at the end.
#[derive(Default)]
struct RecentRows {
    rows: VecDeque<(MediaDigest, MediaRows)>,
    bytes: usize,
}

impl RecentRows {
    /// Returns the rows of a medium, which becomes the latest one.
    fn get(&mut self, digest: MediaDigest) -> Option<MediaRows> {
        let index = self.rows.iter().position(|(other, _)| *other == digest)?;
        let entry = self.rows.remove(index)?;
        let rows = entry.1.clone();
        self.rows.push_back(entry);
        Some(rows)
    }

    /// Adds the rows of a medium that has none here, and removes the oldest ones beyond [`RECENT_BYTES`].
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

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
