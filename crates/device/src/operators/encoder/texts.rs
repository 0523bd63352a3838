//! Packed texts: the rows of all texts of a batch, one text after the other, without padding.

use std::ops::Range;

use crate::operators::call::Call;

/// Texts of a batch of packed rows.
pub(super) struct PackedTexts<'a> {
    /// Index of each text's first row, and the number of all rows at the end.
    offsets: &'a [i32],
}

impl<'a> PackedTexts<'a> {
    /// Returns the texts that an input of a call describes. They have `rows` rows in total.
    pub(super) fn of(call: &Call<'a>, input: usize, rows: usize) -> ort::Result<Self> {
        let offsets = call.input::<i32>(input)?.data;
        Self::new(offsets, rows).ok_or_else(|| {
            let count = offsets.len();
            ort::Error::new(format!("expected ascending offsets from 0 to {rows}, found {count} others"))
        })
    }

    /// Returns the texts with these offsets, if the offsets ascend from 0 to `rows`.
    fn new(offsets: &'a [i32], rows: usize) -> Option<Self> {
        let ends = offsets.last().is_some_and(|&last| i64::from(last) == rows as i64);
        (offsets.first() == Some(&0) && ends && offsets.is_sorted()).then_some(Self { offsets })
    }

    /// Returns the number of texts.
    pub(super) fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the rows of each text.
    pub(super) fn rows(&self) -> impl Iterator<Item = Range<usize>> + use<'a> {
        self.offsets.windows(2).map(|ends| ends[0] as usize..ends[1] as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_ascend_from_the_first_row_to_the_last() {
        let check = |offsets: &[i32], rows: usize, expect: Option<&[Range<usize>]>| {
            let texts = PackedTexts::new(offsets, rows);
            let found = texts.as_ref().map(|texts| texts.rows().collect::<Vec<_>>());
            assert_eq!(found.as_deref(), expect, "{offsets:?}");
            assert_eq!(texts.map(|texts| texts.count()), expect.map(<[_]>::len));
        };
        check(&[0, 3, 3, 8], 8, Some(&[0..3, 3..3, 3..8]));
        check(&[0], 0, Some(&[]));
        check(&[0, 0, 0], 0, Some(&[0..0, 0..0]));
        for (offsets, rows) in [
            (&[][..], 0),
            (&[1, 8], 8),
            (&[-1, 8], 8),
            (&[0, 7], 8),
            (&[0, 9], 8),
            (&[0, 5, 4, 8], 8),
            (&[0, 9, 8], 8),
            (&[0, -1], usize::MAX),
        ] {
            check(offsets, rows, None);
        }
    }
}
