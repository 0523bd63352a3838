//! Rows of a medium run in one step, because they may attend to each other in both directions.

use super::policy::Grant;
use crate::{position::Position, sequence::Sequence};

/// Changes grants that end within the rows of a medium: they get the other rows too, if a span may have `chunk` tokens with
/// them, or else end before the medium. Media with more than `chunk` rows are divided.
pub(crate) fn keep_whole(grants: &mut [Grant], running: &[Sequence], chunk: usize) {
    for grant in grants {
        let sequence = &running[grant.index];
        if !sequence.media.is_empty() {
            grant.tokens = whole(&sequence.tokens[sequence.cached..], grant.tokens, chunk);
        }
    }
}

/// Returns the number of positions for a step that should run the first `count` of `positions`.
fn whole(positions: &[Position], count: usize, chunk: usize) -> usize {
    let continues = |at: usize| {
        let pair = positions.get(at.wrapping_sub(1)).zip(positions.get(at));
        let rows = pair.and_then(|(before, after)| before.as_row().zip(after.as_row()));
        rows.is_some_and(|((id, row), next)| next == (id, row + 1))
    };
    let end = (count..positions.len()).find(|&at| !continues(at)).unwrap_or(positions.len());
    if end <= chunk {
        return end;
    }
    match (1..=count).rev().find(|&at| !continues(at)) {
        Some(start) => start,
        None => count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::MediaRows;

    #[test]
    fn a_step_never_ends_within_a_medium_that_fits() {
        let medium =
            |number: u8, rows: usize| MediaRows::new([number; 32], 2, vec![0.0; 2 * rows].into()).unwrap();
        let (first, second) = (medium(201, 4), medium(202, 6));
        let token = || [Position::token(7)].into_iter();
        let text = || token().chain(token());
        // Two tokens, four rows, two tokens, the same four rows, six other rows, a token.
        let positions: Vec<Position> = text()
            .chain(first.positions())
            .chain(text())
            .chain(first.positions())
            .chain(second.positions())
            .chain(token())
            .collect();
        let ends = |chunk: usize| -> Vec<usize> {
            (1..=positions.len().min(chunk)).map(|count| whole(&positions, count, chunk)).collect()
        };
        assert_eq!(ends(100), [1, 2, 6, 6, 6, 6, 7, 8, 12, 12, 12, 12, 18, 18, 18, 18, 18, 18, 19]);
        assert_eq!(ends(6), [1, 2, 6, 6, 6, 6]);
        // The rows do not fit any more, so the step ends before them.
        assert_eq!(ends(5), [1, 2, 2, 2, 2]);
        // A medium with more rows than a step is divided, and so is the rest of it.
        assert_eq!(whole(&positions[12..], 5, 5), 5);
        assert_eq!(whole(&positions[3..], 2, 100), 3);
    }
}
