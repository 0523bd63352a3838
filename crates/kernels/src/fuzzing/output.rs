//! Results of kernels, and their comparison.

use crate::{kernels::Kernels, view::MatrixMut};

/// Number of columns on each side of a result that no kernel may change.
const MARGIN: usize = 5;

/// Initial value of all elements: a NaN with bits that no kernel produces.
const UNTOUCHED: u32 = 0x7fc0_dead;

/// Runs a kernel that writes `rows` by `columns` numbers, and returns them.
///
/// # Panics
/// The kernel wrote outside its result, or not all of it.
pub(super) fn written(rows: usize, columns: usize, run: impl FnOnce(MatrixMut<'_>)) -> Vec<f32> {
    let untouched = |x: &f32| x.to_bits() == UNTOUCHED;
    let width = columns + 2 * MARGIN;
    let mut data = vec![f32::from_bits(UNTOUCHED); rows * width];
    let (_, rest) = MatrixMut::new(&mut data, width).split_at_column(MARGIN);
    run(rest.split_at_column(columns).0);
    let mut result = Vec::with_capacity(rows * columns);
    for row in data.chunks(width) {
        let (left, inner) = row.split_at(MARGIN);
        let (inner, right) = inner.split_at(columns);
        assert!(left.iter().chain(right).all(untouched), "a kernel wrote outside its result");
        assert!(!inner.iter().any(untouched), "a kernel did not write all of its result");
        result.extend_from_slice(inner);
    }
    result
}

/// Runs kernels on every instruction set.
///
/// # Panics
/// A result differs from that of the portable kernels.
pub(super) fn agree(what: &str, run: impl Fn(&Kernels) -> Vec<f32>) {
    let reference = run(&Kernels::portable());
    for kernels in Kernels::available() {
        assert_same(&format!("{what} on {}", kernels.name()), &run(&kernels), &reference);
    }
}

/// Compares two results bit by bit. All NaNs count as equal.
///
/// # Panics
/// They differ.
pub(super) fn assert_same(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    if let Some(at) = found.iter().zip(expected).position(|pair| !same(pair)) {
        panic!("{what}, element {at}: {:e} instead of {:e}", found[at], expected[at]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_results_agree() {
        assert_same("", &[f32::NAN, 1.0], &[-f32::NAN, 1.0]);
        agree("sum", |_| vec![1.0]);
        let found = written(2, 3, |mut out| (0..2).for_each(|row| out.row_mut(row).fill(row as f32)));
        assert_eq!(found, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    #[should_panic(expected = "product, element 1: -0e0 instead of 0e0")]
    fn another_zero_is_a_difference() {
        assert_same("product", &[1.0, -0.0], &[1.0, 0.0]);
    }

    #[test]
    #[should_panic(expected = "did not write all")]
    fn a_missing_number_is_noticed() {
        written(1, 3, |mut out| out.row_mut(0)[..2].fill(0.0));
    }
}
