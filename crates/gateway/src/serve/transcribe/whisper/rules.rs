//! Tokens that may come next in the transcript of a window: the grammar of timestamps, and tokens that are never
//! generated. Follows `ApplyTimestampRules` of OpenAI's `decoding.py`.

use narthex_spec::{TokenId, manifest::SpeechEntry};

/// Latest timestamp that may start a window, as the number of its token: 1 second.
const MAX_FIRST_TIMESTAMP: TokenId = 50;

/// Logit of a token that may not come next.
const FORBIDDEN: f32 = f32::NEG_INFINITY;

/// Sets the logits of tokens that may not follow `sampled`, the tokens of the window so far.
pub(super) fn apply(speech: &SpeechEntry, sampled: &[TokenId], logits: &mut [f32]) {
    let timestamps = speech.first_timestamp as usize;
    forbid(logits, speech.suppress.iter().map(|&token| token as usize));
    forbid(logits, [speech.no_timestamps as usize]);
    if sampled.is_empty() {
        forbid(logits, speech.suppress_first.iter().map(|&token| token as usize));
        // A window starts with a timestamp.
        let latest = (speech.first_timestamp + MAX_FIRST_TIMESTAMP) as usize;
        forbid(logits, 0..timestamps);
        forbid(logits, latest + 1..logits.len());
        return;
    }

    let is_timestamp = |token: &TokenId| speech.is_timestamp(*token);
    let last = sampled.last().is_some_and(is_timestamp);
    let before_last = sampled.len() < 2 || sampled.get(sampled.len() - 2).is_some_and(is_timestamp);
    if last && before_last {
        // Text follows the start of a segment.
        forbid(logits, timestamps..logits.len());
    } else if last {
        // The start of the next segment, or the end of the transcript, follows the end of a segment.
        forbid(logits, 0..speech.end as usize);
    }
    if let Some(&latest) = sampled.iter().rev().find(|token| is_timestamp(token)) {
        // Times do not decrease, and a segment does not end where it starts.
        let earliest = latest as usize + usize::from(!last || before_last);
        forbid(logits, timestamps..earliest.min(logits.len()));
    }
    if is_likely_timestamp(&logits[..timestamps.min(logits.len())], &logits[timestamps.min(logits.len())..]) {
        forbid(logits, 0..timestamps);
    }
}

fn forbid(logits: &mut [f32], tokens: impl IntoIterator<Item = usize>) {
    for token in tokens {
        if let Some(logit) = logits.get_mut(token) {
            *logit = FORBIDDEN;
        }
    }
}

/// Returns whether all timestamps together are likelier than any other token.
fn is_likely_timestamp(texts: &[f32], timestamps: &[f32]) -> bool {
    let most = |values: &[f32]| values.iter().copied().fold(FORBIDDEN, f32::max);
    let best = most(timestamps);
    if best == FORBIDDEN {
        return false;
    }
    let sum: f32 = timestamps.iter().map(|logit| (logit - best).exp()).sum();
    best + sum.ln() > most(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary of 4 texts, the end 4, a control token 5, and timestamps from 6 on.
    fn speech() -> SpeechEntry {
        SpeechEntry {
            end: 4,
            no_timestamps: 5,
            first_timestamp: 6,
            suppress: vec![1],
            suppress_first: vec![4],
            ..SpeechEntry::default()
        }
    }

    /// Returns the tokens that may follow `sampled` if their logits are these.
    fn allowed(sampled: &[TokenId], logits: &[f32]) -> Vec<usize> {
        let mut logits = logits.to_vec();
        apply(&speech(), sampled, &mut logits);
        (0..logits.len()).filter(|&token| logits[token] > FORBIDDEN).collect()
    }

    #[test]
    fn timestamps_come_in_pairs_around_text() {
        // One text, and the end, are likelier than all timestamps together.
        let text = [9.0, 9.0, 9.0, 0.0, 3.0, 9.0, 1.0, 1.0, 1.0, 1.0];
        let check = |sampled: &[TokenId], expect: &[usize]| assert_eq!(allowed(sampled, &text), expect);
        check(&[], &[6, 7, 8, 9]);
        check(&[7], &[0, 2, 3, 4]);
        check(&[7, 2], &[0, 2, 3, 4, 8, 9]);
        check(&[7, 2, 8], &[4, 8, 9]);
        check(&[7, 2, 8, 8], &[0, 2, 3, 4]);
        check(&[7, 2, 8, 8, 3], &[0, 2, 3, 4, 9]);
        // After the last timestamp, only the end of the transcript is left.
        check(&[7, 2, 9], &[4, 9]);
    }

    #[test]
    fn timestamps_come_when_they_are_likelier_than_each_text() {
        // Each timestamp is less likely than the text, but their sum is likelier.
        let logits = [1.0, 9.0, 0.0, 0.0, 0.0, 9.0, 0.9, 0.9, 0.9, 0.9];
        assert_eq!(allowed(&[6, 2], &logits), [7, 8, 9]);
    }

    #[test]
    fn a_window_starts_within_its_first_second() {
        let logits = vec![0.0; 6 + 100];
        let found = allowed(&[], &logits);
        assert_eq!((found[0], found[found.len() - 1]), (6, 6 + 50));
    }
}
