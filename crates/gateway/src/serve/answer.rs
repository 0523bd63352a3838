//! Extractive question answering: the parts of a context that answer a question best.
//!
//! A context that is longer than the model takes is read in windows that overlap. In each, the beginnings and ends that
//! the model sees become probabilities over the context and the first token, which stands for "no answer here"; a span's
//! score is the product of its ends', and the best of all windows counts (Devlin et al. 2018, arXiv:1810.04805, §4.3).

use std::ops::Range;

use narthex_text::tokenizer::Pair;

use crate::{
    cancel::Cancel,
    encoder_queue::Item,
    error::Error,
    load::loaded_model::Loaded,
    report::models::ModelKind,
    serve::request::{Answer, AnswerRequest, Answers},
};

/// The most answers of one request.
const MAX_ANSWERS: usize = 100;

/// A span in the context, in bytes.
type Place = (usize, usize);

/// Finds the answers, the best first.
pub(crate) fn answer(loaded: &Loaded, request: &AnswerRequest, cancel: &Cancel) -> Result<Answers, Error> {
    let encoder = loaded.encoder(ModelKind::Answer)?;
    check(request)?;
    let place = encoder.enter(cancel)?;
    let pair = loaded.tokenizer.encode_pair(&request.question, &request.context)?;
    let limit = encoder.limits().max_length.min(loaded.manifest.max_length).min(request.window.max(1));
    let room = limit.saturating_sub(pair.overhead());
    if room == 0 {
        let found = pair.overhead();
        return Err(Error::invalid(
            "question",
            format!("it has {found} tokens, but a window has {limit}; shorten it"),
        ));
    }
    let at_once = (encoder.limits().max_batch_tokens / limit).max(1);
    let mut parts = windows(pair.second.len(), room, request.stride).peekable();
    let (mut no_answer, mut prompt_tokens) = (1.0_f64, 0);
    let mut best = Best::new(request.top_k);
    while parts.peek().is_some() {
        let batch: Vec<Pair> = parts.by_ref().take(at_once).map(|part| pair.part(part)).collect();
        prompt_tokens += batch.iter().map(|window| window.tokens.len()).sum::<usize>();
        let rows = place.run(batch.iter().map(item).collect())?;
        for (window, rows) in batch.iter().zip(rows) {
            let scores = Scores::new(window, &rows);
            no_answer = no_answer.min(scores.none);
            for ([first, last], score) in scores.spans(request.longest) {
                let (start, end) = (window.bytes[first].start, window.bytes[last].end);
                best.offer(score, || trimmed(&request.context, start, end));
            }
        }
    }
    let answers = best.found.into_iter().map(|(place, score)| found(&request.context, place, score));
    Ok(Answers { answers: answers.collect(), no_answer, prompt_tokens, ran_on: loaded.ran_on() })
}

/// A window as the encoder reads it.
fn item(window: &Pair) -> Item {
    Item { tokens: window.tokens.clone(), second: window.segment, asked: Vec::new() }
}

fn check(request: &AnswerRequest) -> Result<(), Error> {
    if !(1..=MAX_ANSWERS).contains(&request.top_k) {
        return Err(Error::invalid("top_k", format!("expected 1 to {MAX_ANSWERS}, found {}", request.top_k)));
    }
    let (longest, window) = (request.longest, request.window);
    if !(1..=window).contains(&longest) {
        let message = format!("expected 1 to {window}, the tokens that are read at once, found {longest}");
        return Err(Error::invalid("max_answer_tokens", message));
    }
    for (param, text) in [("question", &request.question), ("context", &request.context)] {
        if text.trim().is_empty() {
            return Err(Error::invalid(param, "expected some text, found none"));
        }
    }
    Ok(())
}

fn found(context: &str, (start, end): Place, score: f64) -> Answer {
    let chars = context[..start].chars().count();
    let text = context[start..end].to_owned();
    let chars = chars..chars + text.chars().count();
    Answer { text, bytes: start..end, chars, score }
}

/// Parts of `length` tokens that are `room` long and share `stride`; at least one.
fn windows(length: usize, room: usize, stride: usize) -> impl Iterator<Item = Range<usize>> {
    // Windows that share all but nothing of their tokens would have no end.
    let step = room - stride.min(room / 2);
    let count = 1 + length.saturating_sub(room).div_ceil(step);
    (0..count).map(move |index| index * step..(index * step + room).min(length))
}

/// What the model sees in a window.
struct Scores {
    /// For each token of the context, the probabilities that an answer begins and ends there.
    ends: Vec<[f64; 2]>,
    /// The probability that both are at the first token.
    none: f64,
}

impl Scores {
    /// Reads `rows`, two logits for each token.
    fn new(window: &Pair, rows: &[f32]) -> Self {
        let logit =
            |token: usize, end: usize| f64::from(rows.get(2 * token + end).copied().unwrap_or(f32::MIN));
        let softmax = |end: usize| {
            let seen: Vec<f64> =
                [0].into_iter().chain(window.second.clone()).map(|t| logit(t, end)).collect();
            let most = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = seen.iter().map(|x| (x - most).exp()).sum();
            seen.into_iter().map(|x| (x - most).exp() / sum).collect::<Vec<_>>()
        };
        let (begins, ends) = (softmax(0), softmax(1));
        let none = begins[0] * ends[0];
        Self { ends: begins[1..].iter().zip(&ends[1..]).map(|(a, b)| [*a, *b]).collect(), none }
    }

    /// Every span of at most `longest` tokens, by its first and last one of the window's part of the context, with its
    /// score.
    fn spans(&self, longest: usize) -> impl Iterator<Item = ([usize; 2], f64)> {
        (0..self.ends.len()).flat_map(move |first| {
            let last = first.saturating_add(longest).min(self.ends.len());
            (first..last).map(move |last| ([first, last], self.ends[first][0] * self.ends[last][1]))
        })
    }
}

/// The best places so far, the best first; of equals the one that comes earlier.
struct Best {
    most: usize,
    found: Vec<(Place, f64)>,
}

impl Best {
    fn new(most: usize) -> Self {
        Self { most, found: Vec::with_capacity(most + 1) }
    }

    /// Takes a span in if its score is good enough; only then is its place asked for. A place has its best score.
    fn offer(&mut self, score: f64, place: impl FnOnce() -> Option<Place>) {
        if self.found.len() == self.most && self.found.last().is_some_and(|last| score < last.1) {
            return;
        }
        let Some(place) = place() else { return };
        if let Some(known) = self.found.iter().position(|known| known.0 == place) {
            if self.found[known].1 >= score {
                return;
            }
            self.found.remove(known);
        }
        let before = |known: &(Place, f64)| score.total_cmp(&known.1).then(known.0.cmp(&place)).is_lt();
        self.found.insert(self.found.partition_point(before), (place, score));
        self.found.truncate(self.most);
    }
}

/// Whole characters of a part of `context`, without blanks at its ends; nothing where that leaves none.
fn trimmed(context: &str, start: usize, end: usize) -> Option<Place> {
    let (start, end) = (context.floor_char_boundary(start), context.ceil_char_boundary(end));
    let text = context.get(start..end)?;
    let kept = text.trim();
    let start = start + (text.len() - text.trim_start().len());
    (!kept.is_empty()).then_some((start, start + kept.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_overlap_and_cover_all() {
        let check = |length, room, stride, expect: &[(usize, usize)]| {
            let found = windows(length, room, stride).map(|part| (part.start, part.end));
            assert_eq!(found.collect::<Vec<_>>(), expect);
        };
        check(5, 8, 2, &[(0, 5)]);
        check(8, 8, 2, &[(0, 8)]);
        check(9, 8, 2, &[(0, 8), (6, 9)]);
        check(14, 8, 2, &[(0, 8), (6, 14)]);
        check(15, 8, 2, &[(0, 8), (6, 14), (12, 15)]);
        check(3, 1, 100, &[(0, 1), (1, 2), (2, 3)]);
        check(6, 4, usize::MAX, &[(0, 4), (2, 6)]);
    }

    #[test]
    fn spans_are_scored_by_both_ends() {
        let window = Pair { tokens: vec![0; 5], segment: 2, second: 2..4, bytes: vec![0..2, 2..5] };
        // The question's logits count for nothing, however large.
        let rows = [0.0, 0.0, 99.0, 99.0, 3f32.ln(), 0.0, 0.0, 2f32.ln(), 99.0, 99.0];
        let scores = Scores::new(&window, &rows);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(close(scores.none, 0.2 * 0.25));
        let spans: Vec<([usize; 2], f64)> = scores.spans(15).collect();
        assert_eq!(spans.iter().map(|span| span.0).collect::<Vec<_>>(), [[0, 0], [0, 1], [1, 1]]);
        let expected = [0.6 * 0.25, 0.6 * 0.5, 0.2 * 0.5];
        assert!(spans.iter().zip(expected).all(|(span, expected)| close(span.1, expected)));
        assert_eq!(scores.spans(1).count(), 2);
    }

    #[test]
    fn no_more_places_are_kept_than_are_asked_for() {
        let mut best = Best::new(2);
        let mut offer = |score, place: Place| {
            best.offer(score, || Some(place));
            assert!(best.found.capacity() <= 4);
            best.found.clone()
        };
        assert_eq!(offer(0.2, (4, 5)), [((4, 5), 0.2)]);
        assert_eq!(offer(0.2, (1, 2)), [((1, 2), 0.2), ((4, 5), 0.2)]);
        // A place that is found again has its better score, and one that is worse than all is not even looked for.
        assert_eq!(offer(0.1, (4, 5)), [((1, 2), 0.2), ((4, 5), 0.2)]);
        assert_eq!(offer(0.3, (4, 5)), [((4, 5), 0.3), ((1, 2), 0.2)]);
        assert_eq!(offer(0.2, (0, 2)), [((4, 5), 0.3), ((0, 2), 0.2)]);
        assert_eq!(offer(0.5, (7, 9)), [((7, 9), 0.5), ((4, 5), 0.3)]);
        best.offer(0.2, || panic!("a place that cannot be among the best"));
        best.offer(0.9, || None);
        assert_eq!(best.found.len(), 2);
    }

    #[test]
    fn spans_are_whole_characters_without_blanks() {
        assert_eq!(trimmed(" é x ", 0, 5), Some((1, 5)));
        assert_eq!(trimmed(" é x ", 2, 3), Some((1, 3)));
        assert_eq!(trimmed("a  b", 1, 3), None);
    }
}
