//! Limits of the numbers of an architecture.

use std::ops::RangeInclusive;

/// Returns what was expected and what was found for the first number that is outside its limits.
pub(super) fn outside(numbers: &[(&str, usize, RangeInclusive<usize>)]) -> Option<[String; 2]> {
    let (what, number, limits) = numbers.iter().find(|(_, number, limits)| !limits.contains(number))?;
    Some([format!("{} to {} {what}", limits.start(), limits.end()), number.to_string()])
}
