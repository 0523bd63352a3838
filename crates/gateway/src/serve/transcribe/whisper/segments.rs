//! The segments of a window, and the start of the next window. Follows `transcribe` of OpenAI's `transcribe.py`.

use std::ops::Range;

use narthex_spec::{TokenId, manifest::SpeechEntry};

/// Number of samples of a step of timestamps, 20 ms.
pub(super) const TIMESTAMP_SAMPLES: usize = 320;

/// A part of a window's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenSegment {
    /// Samples from the start of the window.
    pub(super) samples: Range<usize>,
    /// Its tokens, with timestamps, as a range of the window's.
    pub(super) tokens: Range<usize>,
}

/// Segments of a window, and the number of samples to the start of the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WindowSegments {
    pub(super) segments: Vec<TokenSegment>,
    pub(super) advance: usize,
}

/// Divides the tokens of a window of `samples` samples at the pairs of timestamps. The next window starts after the last
/// segment that has an end; the text after it is decoded again.
pub(super) fn divide(speech: &SpeechEntry, tokens: &[TokenId], samples: usize) -> WindowSegments {
    let time = |token: TokenId| {
        (token.saturating_sub(speech.first_timestamp) as usize * TIMESTAMP_SAMPLES).min(samples)
    };
    let flags: Vec<bool> = tokens.iter().map(|&token| speech.is_timestamp(token)).collect();
    let ends_alone = matches!(flags.as_slice(), [.., false, true]);
    // Indices of the second of two timestamps in sequence, where a segment starts.
    let mut starts: Vec<usize> =
        flags.windows(2).enumerate().filter(|(_, pair)| pair[0] && pair[1]).map(|(at, _)| at + 1).collect();
    if starts.is_empty() {
        let last = tokens.iter().copied().rfind(|&token| speech.is_timestamp(token));
        let end = last.map(time).filter(|&end| end > 0).unwrap_or(samples);
        let segment = TokenSegment { samples: 0..end, tokens: 0..tokens.len() };
        return WindowSegments { segments: vec![segment], advance: samples };
    }

    if ends_alone {
        starts.push(tokens.len());
    }
    let mut segments = Vec::with_capacity(starts.len());
    let mut first = 0;
    for end in starts {
        let part = &tokens[first..end];
        let [start, .., stop] = part else {
            first = end;
            continue;
        };
        segments.push(TokenSegment { samples: time(*start)..time(*stop), tokens: first..end });
        first = end;
    }
    let last = first.checked_sub(1).and_then(|at| tokens.get(at)).copied().map_or(0, time);
    // A window always makes progress.
    let advance = if ends_alone || last == 0 { samples } else { last };
    WindowSegments { segments, advance }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks segments as their start and end in steps of 20 ms with their tokens, and the next window, of a window of
    /// 1500 steps. Texts are below 10, and the timestamp 0 is 10.
    fn check(tokens: &[TokenId], expect: &[(Range<usize>, Range<usize>)], advance: usize) {
        let speech = SpeechEntry { first_timestamp: 10, ..SpeechEntry::default() };
        let found = divide(&speech, tokens, 1500 * TIMESTAMP_SAMPLES);
        let steps =
            |samples: &Range<usize>| samples.start / TIMESTAMP_SAMPLES..samples.end / TIMESTAMP_SAMPLES;
        let segments: Vec<_> =
            found.segments.iter().map(|segment| (steps(&segment.samples), segment.tokens.clone())).collect();
        assert_eq!(segments, expect, "{tokens:?}");
        assert_eq!(found.advance, advance * TIMESTAMP_SAMPLES, "{tokens:?}");
    }

    #[test]
    fn segments_end_at_pairs_of_timestamps() {
        check(&[10, 1, 2, 40, 40, 3, 90, 90], &[(0..30, 0..4), (30..80, 4..7)], 80);
        // The text after the last pair is decoded again.
        check(&[10, 1, 40, 40, 3, 4], &[(0..30, 0..3)], 30);
        // A single timestamp at the end: nothing is spoken after it.
        check(&[10, 1, 40, 40, 3, 90], &[(0..30, 0..3), (30..80, 3..6)], 1500);
        check(&[10, 1, 40], &[(0..30, 0..3)], 1500);
        check(&[10, 1, 2], &[(0..1500, 0..3)], 1500);
        check(&[], &[(0..1500, 0..0)], 1500);
        // A window that would start again at its own start is left.
        check(&[10, 10, 1], &[], 1500);
    }
}
