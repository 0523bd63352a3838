//! Layers whose memory of a sequence is a state of fixed size.

use std::ops::RangeInclusive;

use super::{DecoderArch, DecoderLayer, GatedDeltaRule};

/// A mixer with a state of fixed size in place of a cache. Before it is a causal convolution with one kernel for each channel,
/// whose last inputs belong to the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Recurrence<'a> {
    /// A gated delta rule.
    DeltaRule(&'a GatedDeltaRule),
}

impl Recurrence<'_> {
    /// Returns its name in messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::DeltaRule(_) => "gated delta rule",
        }
    }

    fn contradiction(self) -> Option<[String; 2]> {
        match self {
            Self::DeltaRule(rule) => rule.contradiction(),
        }
    }
}

impl DecoderArch {
    /// Returns what was expected and what was found if its recurrences are not those of a model: their numbers have limits, and
    /// are the same in every layer.
    pub fn recurrence_contradiction(&self) -> Option<[String; 2]> {
        let mut recurrences = self.layers.iter().filter_map(DecoderLayer::recurrence);
        let first = recurrences.next()?;
        if let Some(contradiction) = first.contradiction() {
            return Some(contradiction);
        }
        let other = recurrences.find(|other| *other != first)?;
        let expected = format!("a {} of one size in every layer with a recurrence", first.title());
        Some([expected, format!("{first:?} and {other:?}")])
    }
}

/// Returns what was expected and what was found for the first number that is outside its limits.
pub(super) fn outside(numbers: &[(&str, usize, RangeInclusive<usize>)]) -> Option<[String; 2]> {
    let (what, number, limits) = numbers.iter().find(|(_, number, limits)| !limits.contains(number))?;
    Some([format!("{} to {} {what}", limits.start(), limits.end()), number.to_string()])
}
