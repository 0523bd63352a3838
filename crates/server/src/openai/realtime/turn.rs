//! A turn: speech that becomes one item.

use narthex_audio::transcript::LiveText;

use super::{SECOND, speech::RecognisedSegment};
use crate::protocol::id;

/// Minimum audio before the first recognition of an open turn. Shorter audio often gives text that nobody said.
const FIRST_RECOGNITION: usize = SECOND * 4 / 5;

/// Minimum new audio before the next recognition of an open turn.
const NEXT_RECOGNITION: usize = SECOND * 3 / 10;

/// Audio of an open turn from which its first sentences are settled: they are not recognised again.
const SETTLED_FROM: usize = 15 * SECOND;

/// Audio at the end of an open turn whose text may change.
const UNSETTLED_END: usize = 2 * SECOND;

/// Audio of an open turn that is settled whole, because the recogniser has windows of 30 seconds.
const SETTLED_WHOLE: usize = 28 * SECOND;

/// Maximum bytes of the settled text that the recogniser reads before the audio.
const MAX_CONTEXT_BYTES: usize = 400;

/// A turn.
#[derive(Debug)]
pub(super) struct LiveTurn {
    pub(super) item_id: String,
    /// Index of its first sample in all audio of the session.
    pub(super) start: u64,
    text: LiveText,
    /// Index of the sample up to which the audio was last recognised.
    recognised_to: u64,
    /// Number of tokens of the last result that were not charged.
    tokens: usize,
    has_failed: bool,
}

/// Effect of a result on an open turn.
#[derive(Debug, Default, PartialEq)]
pub(super) struct TurnProgress {
    /// Text that has become final.
    pub(super) delta: String,
    /// Number of samples from the start of the audio that are not recognised again.
    pub(super) settled: usize,
    /// Number of tokens of the settled text.
    pub(super) tokens: usize,
}

impl LiveTurn {
    /// Creates a turn that starts at a sample.
    pub(super) fn new(start: u64) -> Self {
        Self {
            item_id: id::new_id("item_"),
            start,
            text: LiveText::default(),
            recognised_to: start,
            tokens: 0,
            has_failed: false,
        }
    }

    /// Returns whether the open turn should be recognised: with audio up to the sample `end`, of which `length` samples are
    /// not settled.
    pub(super) fn is_due(&self, end: u64, length: usize) -> bool {
        let new = end.saturating_sub(self.recognised_to);
        !self.has_failed && length >= FIRST_RECOGNITION && new >= NEXT_RECOGNITION as u64
    }

    /// Records that a recognition of the audio up to a sample begins. Returns the text before the audio that is not settled.
    pub(super) fn begin_recognition(&mut self, end: u64) -> String {
        self.recognised_to = end;
        let settled = self.text.settled();
        settled[settled.ceil_char_boundary(settled.len().saturating_sub(MAX_CONTEXT_BYTES))..].to_owned()
    }

    /// Ends the recognitions until the turn is complete.
    pub(super) fn fail(&mut self) {
        self.has_failed = true;
    }

    /// Returns the whole text.
    pub(super) fn transcript(&self) -> &str {
        self.text.text()
    }

    /// Returns the number of tokens that were not charged.
    pub(super) fn uncharged_tokens(&self) -> usize {
        self.tokens
    }

    /// Takes the result for the first `length` unsettled samples of the open turn.
    pub(super) fn observe(&mut self, result: &[RecognisedSegment], length: usize) -> TurnProgress {
        let mut delta = self.text.observe(&joined(result));
        let (settled, samples) = settled_part(result, length);
        let tokens = settled.iter().map(|segment| segment.tokens).sum();
        if samples > 0 {
            delta += &self.text.settle(&joined(settled));
        }
        self.tokens = result.iter().map(|segment| segment.tokens).sum::<usize>() - tokens;
        TurnProgress { delta, settled: samples, tokens }
    }

    /// Takes the result for all unsettled audio of the turn, which has ended. Returns the text that has become final.
    pub(super) fn complete(&mut self, result: &[RecognisedSegment]) -> String {
        self.text.settle(&joined(result))
    }
}

fn joined(segments: &[RecognisedSegment]) -> String {
    segments.iter().map(|segment| segment.text.as_str()).collect()
}

/// Returns the segments of a long result whose audio is not recognised again, and the number of samples of this audio.
fn settled_part(result: &[RecognisedSegment], length: usize) -> (&[RecognisedSegment], usize) {
    if length < SETTLED_FROM {
        return (&[], 0);
    }
    let is_settled = |segment: &RecognisedSegment| segment.end + UNSETTLED_END <= length;
    let count =
        result.iter().take_while(|segment| is_settled(segment)).count().min(result.len().saturating_sub(1));
    match result[..count].last() {
        Some(last) => (&result[..count], last.end),
        None if length >= SETTLED_WHOLE => (result, length),
        None => (&[], 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(text: &str, end: usize) -> RecognisedSegment {
        RecognisedSegment { text: text.to_owned(), end: end * SECOND, tokens: text.len() }
    }

    #[test]
    fn long_turns_are_settled_at_the_ends_of_sentences() {
        let mut turn = LiveTurn::new(0);
        let result = [segment(" One.", 6), segment(" Two.", 12), segment(" Three", 16)];
        assert_eq!(turn.observe(&result, 14 * SECOND).settled, 0);
        let progress = turn.observe(&result, 16 * SECOND);
        assert_eq!(
            progress,
            TurnProgress { delta: "One. Two.".to_owned(), settled: 12 * SECOND, tokens: 10 }
        );
        assert_eq!(turn.uncharged_tokens(), 6);
        assert_eq!(turn.begin_recognition(0), "One. Two.");
        // The rest is recognised again, without what is settled.
        assert_eq!(turn.observe(&[segment(" Three", 3)], 4 * SECOND).delta, " Three");
        assert_eq!(turn.complete(&[segment(" Three four.", 4)]), " four.");
        assert_eq!(turn.transcript(), "One. Two. Three four.");
    }

    #[test]
    fn long_turns_without_sentences_are_settled_whole() {
        let mut turn = LiveTurn::new(0);
        let result = [segment(" on and on", 28)];
        assert_eq!(turn.observe(&result, 27 * SECOND).settled, 0);
        let progress = turn.observe(&result, 28 * SECOND);
        assert_eq!((progress.delta.as_str(), progress.settled), ("on and on", 28 * SECOND));
        assert_eq!(turn.uncharged_tokens(), 0);
        // Silence is settled too, so that it does not fill the buffer.
        assert_eq!(turn.observe(&[], 29 * SECOND).settled, 29 * SECOND);
    }

    #[test]
    fn turns_are_recognised_after_enough_audio() {
        let mut turn = LiveTurn::new(16_000);
        assert!(!turn.is_due(16_000 + 12_000, 12_000));
        assert!(turn.is_due(16_000 + 13_000, 13_000));
        turn.begin_recognition(29_000);
        assert!(!turn.is_due(33_000, 17_000));
        assert!(turn.is_due(33_800, 17_800));
        turn.fail();
        assert!(!turn.is_due(60_000, 44_000));
    }
}
