//! Logits of a step, and the scan of each row, which the numerics monitor, the sampler and log-probabilities share.

use narthex_spec::TokenId;

/// Logit of a token that a model never generates. It is the least finite number, so that the probability is zero and
/// the logit counts as finite.
pub const FORBIDDEN_LOGIT: f32 = f32::MIN;

/// Logits of one step. The rows of the spans are in the plan's order, and the rows of each span in token order.
#[derive(Debug, Clone, Copy)]
pub struct Logits<'a> {
    data: &'a [f32],
    /// Number of values from one row to the next.
    stride: usize,
    /// Number of values of a row that are shown.
    vocab: usize,
    /// One scan for each row, or none if the rows have not been scanned.
    scans: &'a [RowScan],
}

impl<'a> Logits<'a> {
    /// Wraps `rows × vocab` values.
    ///
    /// # Panics
    /// Panics if `data` is not a whole number of rows.
    pub fn new(data: &'a [f32], vocab: usize) -> Self {
        assert!(
            vocab > 0 && data.len().is_multiple_of(vocab),
            "{} values are not whole rows of {vocab}",
            data.len()
        );
        Self { data, stride: vocab, vocab, scans: &[] }
    }

    /// Returns the same rows with the logits of the first `vocab` tokens, if they have more.
    pub fn limited(self, vocab: usize) -> Self {
        Self { vocab: self.vocab.min(vocab.max(1)), ..self }
    }

    /// Returns the same rows with one scan for each.
    ///
    /// # Panics
    /// Panics if the number of scans is neither zero nor the number of rows.
    pub fn with_scans(self, scans: &'a [RowScan]) -> Self {
        assert!(scans.is_empty() || scans.len() == self.rows(), "{} scans of {}", scans.len(), self.rows());
        Self { scans, ..self }
    }

    /// Returns the number of logits of a row.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns `count` rows, starting at row `from`.
    pub fn part(&self, from: usize, count: usize) -> Self {
        let data = &self.data[from * self.stride..(from + count) * self.stride];
        Self { data, scans: self.scans.get(from..from + count).unwrap_or(&[]), ..*self }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.data.len() / self.stride
    }

    /// Returns one row.
    pub fn row(&self, index: usize) -> &'a [f32] {
        &self.data[index * self.stride..][..self.vocab]
    }

    /// Returns one row with its scan. If the row has not been scanned, it is scanned now.
    pub fn scanned_row(&self, index: usize) -> ScannedRow<'a> {
        let logits = self.row(index);
        match self.scans.get(index) {
            Some(&scan) => ScannedRow { logits, scan },
            None => ScannedRow::new(logits),
        }
    }
}

/// A row of logits and the result of its scan.
#[derive(Debug, Clone, Copy)]
pub struct ScannedRow<'a> {
    /// Logits of the row.
    pub logits: &'a [f32],
    /// Result of its scan.
    pub scan: RowScan,
}

impl<'a> ScannedRow<'a> {
    /// Scans a row.
    pub fn new(logits: &'a [f32]) -> Self {
        Self { logits, scan: RowScan::of(logits) }
    }
}

/// Token with the greatest logit of a row. If several are equal, the one with the lowest number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// Number of the token.
    pub token: TokenId,
    /// Logit of the token.
    pub logit: f32,
}

/// Result of a scan over one row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowScan {
    /// All logits are finite. The greatest is given.
    Finite(Peak),
    /// A logit is NaN or infinite. The first such logit is given; for an empty row, negative infinity.
    NonFinite(f32),
}

impl RowScan {
    /// Scans a row once.
    pub fn of(logits: &[f32]) -> Self {
        /// Number of values between two comparisons with the greatest value so far.
        const BLOCK: usize = 512;
        /// Number of values that are compared in parallel, so that the compiler can vectorise the loop.
        const LANES: usize = 16;

        let mut peak = Peak { token: 0, logit: f32::NEG_INFINITY };
        for (index, block) in logits.chunks(BLOCK).enumerate() {
            // Zero times a value that is not finite is NaN.
            let mut zeros = [0.0; LANES];
            let mut greatest = [f32::NEG_INFINITY; LANES];
            let mut compare = |values: &[f32]| {
                for ((&value, zero), greatest) in values.iter().zip(&mut zeros).zip(&mut greatest) {
                    *zero += value * 0.0;
                    *greatest = if value > *greatest { value } else { *greatest };
                }
            };
            let (whole, rest) = block.as_chunks::<LANES>();
            whole.iter().for_each(|values| compare(values));
            compare(rest);
            if zeros.iter().any(|zero| zero.is_nan()) {
                return Self::NonFinite(
                    block.iter().copied().find(|value| !value.is_finite()).unwrap_or(f32::NAN),
                );
            }
            let greatest = greatest.into_iter().fold(f32::NEG_INFINITY, f32::max);
            if greatest > peak.logit {
                let place = block.iter().position(|&value| value == greatest).unwrap_or(0);
                peak = Peak { token: (index * BLOCK + place) as TokenId, logit: greatest };
            }
        }
        if peak.logit.is_finite() { Self::Finite(peak) } else { Self::NonFinite(peak.logit) }
    }

    /// Returns the value that is not finite, if there is one.
    pub fn non_finite(self) -> Option<f32> {
        match self {
            Self::Finite(_) => None,
            Self::NonFinite(value) => Some(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finite(token: TokenId, logit: f32) -> RowScan {
        RowScan::Finite(Peak { token, logit })
    }

    #[test]
    fn parts_of_logits_are_neighbouring_rows() {
        let data = [0.0, 0.1, 1.0, 1.1, 2.0, 2.1];
        let logits = Logits::new(&data, 2);
        assert_eq!((logits.rows(), logits.part(1, 2).row(1)), (3, &data[4..]));
        let marker = RowScan::NonFinite(7.0);
        let scans = [RowScan::of(&data[..2]), RowScan::of(&data[2..4]), marker];
        // A row that has a scan is not scanned again.
        assert_eq!(logits.with_scans(&scans).part(1, 2).scanned_row(1).scan, marker);
        let limited = logits.limited(1);
        assert_eq!((limited.rows(), limited.vocab(), limited.part(1, 2).row(1)), (3, 1, &data[4..5]));
        assert_eq!(logits.limited(7).row(2), logits.row(2));
        assert_eq!(logits.part(1, 2).scanned_row(1).scan, finite(1, 2.1));
    }

    #[test]
    fn a_scan_finds_the_lowest_of_the_greatest_and_the_first_value_that_is_not_finite() {
        let check = |length: usize, values: &[(usize, f32)], expected: RowScan| {
            let mut row = vec![-1.0; length];
            values.iter().for_each(|&(place, value)| row[place] = value);
            assert_eq!(format!("{:?}", RowScan::of(&row)), format!("{expected:?}"), "{length} {values:?}");
        };
        check(3, &[(1, 3.0), (2, 3.0)], finite(1, 3.0));
        check(1, &[(0, f32::MIN)], finite(0, f32::MIN));
        check(1300, &[(515, 2.0), (600, 2.0), (1299, 2.0)], finite(515, 2.0));
        check(1300, &[(3, 2.0), (1299, 2.5)], finite(1299, 2.5));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 511, 512, 1299] {
                check(1300, &[(place, bad), (2, 9.0)], RowScan::NonFinite(bad));
            }
        }
        check(0, &[], RowScan::NonFinite(f32::NEG_INFINITY));
    }
}
