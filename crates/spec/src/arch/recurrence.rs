//! Layers whose memory of a sequence is a state of fixed size.

use super::{DecoderArch, DecoderLayer, GatedDeltaRule, Mamba2};

/// A mixer with a state of fixed size in place of a cache. Before it is a causal convolution with one kernel for each channel,
/// whose last inputs belong to the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Recurrence<'a> {
    /// A gated delta rule.
    DeltaRule(&'a GatedDeltaRule),
    /// Mamba-2.
    Mamba2(&'a Mamba2),
}

impl Recurrence<'_> {
    /// Returns its name in messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::DeltaRule(_) => "gated delta rule",
            Self::Mamba2(_) => "Mamba-2 recurrence",
        }
    }

    fn contradiction(self) -> Option<[String; 2]> {
        match self {
            Self::DeltaRule(rule) => rule.contradiction(),
            Self::Mamba2(mamba) => mamba.contradiction(),
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
        let expected = format!("a {} of one size in every layer that has one", first.title());
        Some([expected, format!("{first:?} and {other:?}")])
    }
}
