//! Media in prompts: the placeholder that a chat template writes for a medium becomes the control tokens around it and
//! its rows.
//!
//! Templates write one placeholder for each medium. As in transformers' processors, [`Placements::expand`] replaces it in
//! the rendered text, because tokenizers may join the text around a medium with that in front of it. A soft token then
//! stands for each run of rows, and [`Placements::place`] repeats it once for each row, as in transformers' `input_ids`.
//! Only characters of the template are replaced: a text of the conversation that spells a placeholder stays text.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    iter,
    num::NonZeroUsize,
};

use narthex_spec::{MediaKind, TokenId};

use crate::{template::RenderedPrompt, tokenizer::Tokenizer};

/// Text and token that stand for media of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaPlaceholder {
    /// Kind.
    pub kind: MediaKind,
    /// Text that the chat template writes for a medium.
    pub text: String,
    /// Token that stands for a row. Each kind has its own.
    pub token: TokenId,
}

/// Part of the prompt that stands for a medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MediaSpan {
    /// Control tokens and other text around rows.
    Text(String),
    /// The next rows of the medium.
    Rows(NonZeroUsize),
}

/// The parts of a prompt that stand for one medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaSpans {
    /// Kind of the medium.
    pub kind: MediaKind,
    /// Its parts, in order.
    pub spans: Vec<MediaSpan>,
}

impl MediaSpans {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.spans.iter().fold(0, |rows, span| match span {
            MediaSpan::Text(_) => rows,
            MediaSpan::Rows(count) => rows.saturating_add(count.get()),
        })
    }
}

/// Positions of a prompt that are rows of a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRun {
    /// Index of the first position.
    pub start: usize,
    /// Index of the medium in the conversation.
    pub medium: usize,
    /// Index of the first row in the medium.
    pub row: usize,
    /// Number of rows.
    pub rows: usize,
}

/// A prompt whose media cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The template wrote another number of placeholders than the conversation has media.
    #[error(
        "expected the chat template to write {expected} placeholders for {}, found {found}; this template leaves out or \
         repeats messages with {}",
        kind.plural(),
        kind.plural()
    )]
    Placeholders {
        /// Kind of the media.
        kind: MediaKind,
        /// Number of media.
        expected: usize,
        /// Number of placeholders.
        found: usize,
    },
    /// The tokenizer made another number of soft tokens than there are runs of rows.
    #[error("expected {expected} tokens {token:?} for the rows of {}, found {found}", kind.plural())]
    SoftTokens {
        /// Kind of the media.
        kind: MediaKind,
        /// Spelling of the token.
        token: String,
        /// Number of runs of rows.
        expected: usize,
        /// Number of tokens.
        found: usize,
    },
    /// The vocabulary does not have a soft token.
    #[error("the vocabulary has no token {token}, which stands for the rows of {}", kind.plural())]
    UnknownToken {
        /// Kind of the media.
        kind: MediaKind,
        /// The token.
        token: TokenId,
    },
    /// The model does not read media of a kind.
    #[error("this model does not read {}", kind.plural())]
    NotRead {
        /// Kind of the media.
        kind: MediaKind,
    },
}

/// The media of a conversation, and the placeholders of its model.
#[derive(Debug, Clone)]
pub struct Placements<'a> {
    tokenizer: &'a Tokenizer,
    placeholders: &'a [MediaPlaceholder],
    /// Media in the order of the conversation.
    media: &'a [MediaSpans],
}

/// A placeholder in a rendered text.
struct Occurrence<'a> {
    start: usize,
    placeholder: &'a MediaPlaceholder,
}

impl<'a> Placements<'a> {
    /// Creates placements for the media of a conversation, in its order.
    ///
    /// # Errors
    /// [`PlacementError::NotRead`] if the model has no placeholder for a medium.
    pub fn new(
        tokenizer: &'a Tokenizer,
        placeholders: &'a [MediaPlaceholder],
        media: &'a [MediaSpans],
    ) -> Result<Self, PlacementError> {
        for MediaSpans { kind, .. } in media {
            if placeholders.iter().all(|placeholder| placeholder.kind != *kind) {
                return Err(PlacementError::NotRead { kind: *kind });
            }
        }
        Ok(Self { tokenizer, placeholders, media })
    }

    /// Returns the number of rows of all media.
    pub fn rows(&self) -> usize {
        self.media.iter().fold(0, |rows, medium| rows.saturating_add(medium.rows()))
    }

    /// Replaces the placeholders of a rendered conversation by the parts of its media, in which one soft token stands
    /// for each run of rows.
    pub fn expand(&self, prompt: RenderedPrompt) -> Result<RenderedPrompt, PlacementError> {
        if self.media.is_empty() {
            return Ok(prompt);
        }
        let occurrences = self.occurrences(&prompt);
        for &MediaPlaceholder { kind, .. } in self.placeholders {
            let expected = self.of_kind(kind).count();
            let found = occurrences.iter().filter(|one| one.placeholder.kind == kind).count();
            if found != expected {
                return Err(PlacementError::Placeholders { kind, expected, found });
            }
        }

        let mut expanded = RenderedPrompt::default();
        let mut end = 0;
        let mut media: BTreeMap<MediaKind, VecDeque<&MediaSpans>> = BTreeMap::new();
        for medium in self.media {
            media.entry(medium.kind).or_default().push_back(medium);
        }
        for Occurrence { start, placeholder } in occurrences {
            expanded.append_range(&prompt, end..start);
            end = start + placeholder.text.len();
            let soft_token = self.spelling(placeholder)?;
            let medium = media.get_mut(&placeholder.kind).and_then(VecDeque::pop_front);
            for span in medium.into_iter().flat_map(|medium| &medium.spans) {
                match span {
                    MediaSpan::Text(text) => expanded.append_written(text),
                    MediaSpan::Rows(_) => expanded.append_written(&soft_token),
                }
            }
        }
        expanded.append_range(&prompt, end..prompt.text().len());
        Ok(expanded)
    }

    /// Returns the placeholders that the template wrote, in order.
    fn occurrences(&self, prompt: &RenderedPrompt) -> Vec<Occurrence<'a>> {
        let mut occurrences = Vec::new();
        for range in prompt.written() {
            let mut start = range.start;
            while let Some(next) = self.first(&prompt.text()[start..range.end]) {
                start += next.start;
                occurrences.push(Occurrence { start, ..next });
                start += next.placeholder.text.len();
            }
        }
        occurrences
    }

    /// Returns the first placeholder in a text; the longest of those that begin there.
    fn first(&self, text: &str) -> Option<Occurrence<'a>> {
        let placeholders = self.placeholders.iter().filter(|placeholder| !placeholder.text.is_empty());
        let occurrences = placeholders.filter_map(|placeholder| {
            text.find(&placeholder.text).map(|start| Occurrence { start, placeholder })
        });
        occurrences.min_by_key(|one| (one.start, Reverse(one.placeholder.text.len())))
    }

    /// Returns the media of a kind with their indices.
    fn of_kind(&self, kind: MediaKind) -> impl Iterator<Item = (usize, &'a MediaSpans)> {
        self.media.iter().enumerate().filter(move |(_, medium)| medium.kind == kind)
    }

    fn spelling(&self, placeholder: &MediaPlaceholder) -> Result<String, PlacementError> {
        let MediaPlaceholder { kind, token, .. } = *placeholder;
        self.tokenizer.id_text(token).ok_or(PlacementError::UnknownToken { kind, token })
    }

    /// Returns the tokens of an expanded prompt with one soft token for each row, and the runs of rows, in order.
    pub fn place(&self, tokens: Vec<TokenId>) -> Result<(Vec<TokenId>, Vec<RowRun>), PlacementError> {
        if self.media.is_empty() {
            return Ok((tokens, Vec::new()));
        }
        let mut runs_by_token: BTreeMap<TokenId, VecDeque<RowRun>> = BTreeMap::new();
        for placeholder in self.placeholders {
            let runs: VecDeque<RowRun> =
                self.of_kind(placeholder.kind).flat_map(|(medium, spans)| runs(medium, spans)).collect();
            let expected = runs.len();
            let found = tokens.iter().filter(|token| **token == placeholder.token).count();
            if found != expected {
                let token = self.spelling(placeholder)?;
                return Err(PlacementError::SoftTokens { kind: placeholder.kind, token, expected, found });
            }
            runs_by_token.insert(placeholder.token, runs);
        }

        let mut placed = Vec::with_capacity(tokens.len().saturating_add(self.rows()));
        let mut placed_runs = Vec::new();
        for token in tokens {
            match runs_by_token.get_mut(&token).and_then(VecDeque::pop_front) {
                None => placed.push(token),
                Some(run) => {
                    placed_runs.push(RowRun { start: placed.len(), ..run });
                    placed.extend(iter::repeat_n(token, run.rows));
                }
            }
        }
        Ok((placed, placed_runs))
    }
}

/// Returns the runs of rows of a medium, whose positions are not known yet.
fn runs(medium: usize, spans: &MediaSpans) -> impl Iterator<Item = RowRun> {
    let mut row = 0;
    spans.spans.iter().filter_map(move |span| {
        let MediaSpan::Rows(rows) = span else { return None };
        let run = RowRun { start: 0, medium, row, rows: rows.get() };
        row += rows.get();
        Some(run)
    })
}
