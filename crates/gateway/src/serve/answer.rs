//! Extractive question answering: the spans of a context that answer a question best.
//!
//! A context that is longer than the model's maximum length is processed in overlapping windows. In each window, the
//! start and end logits become probabilities over the context and the first token, which represents "no answer". The
//! score of a span is the product of its two probabilities; the best score of all windows counts (Devlin et al. 2018,
//! arXiv:1810.04805, §4.3).

use std::ops::Range;

use narthex_text::tokenizer::{BoundedTokens, Bounds, Pair};

use crate::{
    cancel::Cancel,
    encoder_queue::{EncoderInput, QueuedRequest},
    error::Error,
    load::{loaded_model::LoadedModel, residency::ReadyModel},
    report::models::ModelKind,
    serve::{
        options::check_count,
        request::{Answer, AnswerRequest, Answers, MAX_ANSWER_TEXT},
    },
};

/// Maximum answers of one request.
const MAX_ANSWERS: usize = 100;

/// Start and end of a span in the context, in bytes.
type Span = (usize, usize);

impl ReadyModel {
    /// Finds the spans of a text that answer a question, best first. Ends with [`Error::Cancelled`] once `cancel` is
    /// set.
    pub fn answer(&self, request: &AnswerRequest, cancel: &Cancel) -> Result<Answers, Error> {
        let model = &*self.loaded;
        let encoder = model.encoder(ModelKind::Answer)?;
        check(request)?;
        let queued = encoder.enter(cancel, &self.computed)?;
        find(model, &queued, request, cancel)
    }
}

/// Finds the spans of a text, with a place in the queue of the encoder.
pub(super) fn find(
    model: &LoadedModel,
    queued: &QueuedRequest<'_>,
    request: &AnswerRequest,
    cancel: &Cancel,
) -> Result<Answers, Error> {
    let limits = model.encoder(ModelKind::Answer)?.limits();
    let limit = limits.max_length.min(request.window.max(1));
    let tokenizer = model.tokenizer()?;
    let bounds = Bounds { limit, is_cancelled: &|| cancel.is_cancelled() };
    // The question is in every window. The context is divided into windows, so all of its tokens are needed.
    let question = tokenizer.encode_document_within(&request.question, bounds)?;
    if !matches!(question, BoundedTokens::Whole(_)) {
        let message = format!("it has more than {limit} tokens, but a window has {limit}; shorten it");
        return Err(Error::invalid("question", message));
    }

    cancel.check()?;
    let pair = tokenizer.encode_pair(&request.question, &request.context)?;
    let room = limit.saturating_sub(pair.overhead());
    if room == 0 {
        let message = format!("it has {} tokens, but a window has {limit}; shorten it", pair.overhead());
        return Err(Error::invalid("question", message));
    }

    let batch_size = (limits.max_batch_tokens / limit).max(1);
    let mut parts = windows(pair.second.len(), room, request.stride).peekable();
    let mut no_answer = 1.0_f64;
    let mut prompt_tokens = 0;
    let mut best = BestSpans::new(request.top_k);
    while parts.peek().is_some() {
        let batch: Vec<Pair> = parts.by_ref().take(batch_size).map(|part| pair.part(part)).collect();
        prompt_tokens += batch.iter().map(|window| window.tokens.len()).sum::<usize>();
        let rows = queued.run(batch.iter().map(EncoderInput::from).collect())?;
        for (window, rows) in batch.iter().zip(rows) {
            let scores = SpanScores::new(window, &rows);
            no_answer = no_answer.min(scores.no_answer);
            for ([first, last], score) in scores.spans(request.longest) {
                let start = window.bytes[first].start;
                let end = window.bytes[last].end;
                best.offer(score, || trimmed(&request.context, start, end));
            }
        }
    }

    let answers = best.spans.into_iter().map(|(span, score)| to_answer(&request.context, span, score));
    Ok(Answers { answers: answers.collect(), no_answer, prompt_tokens, ran_on: model.ran_on() })
}

fn check(request: &AnswerRequest) -> Result<(), Error> {
    check_count("top_k", request.top_k, MAX_ANSWERS)?;
    let longest = request.longest;
    let window = request.window;
    if !(1..=window).contains(&longest) {
        let message = format!("expected 1 to {window}, the tokens of a window, found {longest}");
        return Err(Error::invalid("max_answer_tokens", message));
    }
    for (param, text) in [("question", &request.question), ("context", &request.context)] {
        if text.trim().is_empty() {
            return Err(Error::invalid(param, "expected some text, found none"));
        }
        if text.len() > MAX_ANSWER_TEXT {
            let found = text.len();
            let message = format!(
                "it has {found} bytes, but at most {MAX_ANSWER_TEXT} are allowed; ask about parts of it"
            );
            return Err(Error::invalid(param, message));
        }
    }
    Ok(())
}

fn to_answer(context: &str, span: Span, score: f64) -> Answer {
    let (start, end) = span;
    let chars = context[..start].chars().count();
    let text = context[start..end].to_owned();
    let chars = chars..chars + text.chars().count();
    Answer { text, bytes: start..end, chars, score }
}

/// Returns windows of `room` tokens that overlap by `stride`; at least one.
fn windows(length: usize, room: usize, stride: usize) -> impl Iterator<Item = Range<usize>> {
    // A larger overlap would create an excessive number of windows.
    let step = room - stride.min(room / 2);
    let count = 1 + length.saturating_sub(room).div_ceil(step);
    (0..count).map(move |index| index * step..(index * step + room).min(length))
}

/// Probabilities of the spans in a window.
struct SpanScores {
    /// For each token of the context, the probabilities that an answer starts and ends there.
    ends: Vec<[f64; 2]>,
    /// Probability that both are at the first token.
    no_answer: f64,
}

impl SpanScores {
    /// Reads `rows`, two logits for each token.
    fn new(window: &Pair, rows: &[f32]) -> Self {
        let [starts, ends] = [0, 1].map(|end| {
            let logits: Vec<f64> = [0]
                .into_iter()
                .chain(window.second.clone())
                .map(|token| f64::from(rows.get(2 * token + end).copied().unwrap_or(f32::MIN)))
                .collect();
            let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|x| (x - max).exp()).sum();
            logits.into_iter().map(|x| (x - max).exp() / sum).collect::<Vec<_>>()
        });
        let no_answer = starts[0] * ends[0];
        Self { ends: starts[1..].iter().zip(&ends[1..]).map(|(a, b)| [*a, *b]).collect(), no_answer }
    }

    /// Returns every span of at most `longest` tokens as first and last token of the window's context, with its score.
    fn spans(&self, longest: usize) -> impl Iterator<Item = ([usize; 2], f64)> {
        (0..self.ends.len()).flat_map(move |first| {
            let last = first.saturating_add(longest).min(self.ends.len());
            (first..last).map(move |last| ([first, last], self.ends[first][0] * self.ends[last][1]))
        })
    }
}

/// The best spans so far, best first; of equal ones, the earlier first.
struct BestSpans {
    limit: usize,
    spans: Vec<(Span, f64)>,
}

impl BestSpans {
    fn new(limit: usize) -> Self {
        Self { limit, spans: Vec::with_capacity(limit + 1) }
    }

    /// Adds a span if its score is good enough, and only then locates it. A span keeps its best score.
    fn offer(&mut self, score: f64, locate: impl FnOnce() -> Option<Span>) {
        if self.spans.len() == self.limit && self.spans.last().is_some_and(|last| score < last.1) {
            return;
        }
        let Some(span) = locate() else { return };
        if let Some(known) = self.spans.iter().position(|known| known.0 == span) {
            if self.spans[known].1 >= score {
                return;
            }
            self.spans.remove(known);
        }
        self.spans.insert(
            self.spans.partition_point(|known: &(Span, f64)| {
                score.total_cmp(&known.1).then(known.0.cmp(&span)).is_lt()
            }),
            (span, score),
        );
        self.spans.truncate(self.limit);
    }
}

/// Extends a part of `context` to whole characters and trims white space; `None` if nothing is left.
fn trimmed(context: &str, start: usize, end: usize) -> Option<Span> {
    let start = context.floor_char_boundary(start);
    let end = context.ceil_char_boundary(end);
    let text = context.get(start..end)?;
    let trimmed = text.trim();
    let start = start + (text.len() - text.trim_start().len());
    (!trimmed.is_empty()).then_some((start, start + trimmed.len()))
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
        // The logits of the question's tokens are ignored, even if they are large.
        let rows = [0.0, 0.0, 99.0, 99.0, 3f32.ln(), 0.0, 0.0, 2f32.ln(), 99.0, 99.0];
        let scores = SpanScores::new(&window, &rows);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(close(scores.no_answer, 0.2 * 0.25));
        let spans: Vec<([usize; 2], f64)> = scores.spans(15).collect();
        assert_eq!(spans.iter().map(|span| span.0).collect::<Vec<_>>(), [[0, 0], [0, 1], [1, 1]]);
        let expected = [0.6 * 0.25, 0.6 * 0.5, 0.2 * 0.5];
        assert!(spans.iter().zip(expected).all(|(span, expected)| close(span.1, expected)));
        assert_eq!(scores.spans(1).count(), 2);
    }

    #[test]
    fn only_the_best_spans_are_kept() {
        let mut best = BestSpans::new(2);
        let mut offer = |score, span: Span| {
            best.offer(score, || Some(span));
            assert!(best.spans.capacity() <= 4);
            best.spans.clone()
        };
        assert_eq!(offer(0.2, (4, 5)), [((4, 5), 0.2)]);
        assert_eq!(offer(0.2, (1, 2)), [((1, 2), 0.2), ((4, 5), 0.2)]);
        // A span that is offered again keeps its better score. A span below all kept scores is not even located.
        assert_eq!(offer(0.1, (4, 5)), [((1, 2), 0.2), ((4, 5), 0.2)]);
        assert_eq!(offer(0.3, (4, 5)), [((4, 5), 0.3), ((1, 2), 0.2)]);
        assert_eq!(offer(0.2, (0, 2)), [((4, 5), 0.3), ((0, 2), 0.2)]);
        assert_eq!(offer(0.5, (7, 9)), [((7, 9), 0.5), ((4, 5), 0.3)]);
        best.offer(0.2, || panic!("a span that cannot be among the best"));
        best.offer(0.9, || None);
        assert_eq!(best.spans.len(), 2);
    }

    #[test]
    fn spans_are_whole_characters_without_blanks() {
        assert_eq!(trimmed(" é x ", 0, 5), Some((1, 5)));
        assert_eq!(trimmed(" é x ", 2, 3), Some((1, 3)));
        assert_eq!(trimmed("a  b", 1, 3), None);
    }
}
