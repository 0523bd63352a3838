//! Vocabulary pruning: the tokens that a model's head keeps, from a text or a list.
//!
//! The tokenizer and the token table stay complete, so prompts are tokenized as before. Special tokens and single-byte
//! tokens are always kept, so that turns can end and every text that the tokenizer can encode in bytes can still be
//! generated.

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use narthex_checkpoint::Checkpoint;
use narthex_spec::{TokenId, arch::Architecture};
use narthex_text::tokenizer::{Specials, Tokenizer, TokenizerError};
use sha2::{Digest, Sha256};

/// Maximum size of a file, in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// Maximum size of a piece of text that is tokenized at once, in bytes.
const PIECE: usize = 1 << 16;

/// Source of the tokens to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Tokens of a text, the most frequent first.
    Text(String),
    /// Listed tokens, in order of priority.
    List(Vec<TokenId>),
}

/// Vocabulary that a head is pruned to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VocabSubset {
    /// Source of the tokens to keep.
    pub source: Source,
    /// Maximum number of tokens, including those that are always kept; `None` keeps all tokens of the source.
    pub most: Option<usize>,
}

/// Reason why a vocabulary cannot be pruned.
#[derive(Debug, thiserror::Error)]
pub enum VocabSubsetError {
    /// The file cannot be read, or is not UTF-8 text.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is too long.
    #[error("{path} has over {most} bytes; expected a shorter text")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Maximum size of a file, in bytes.
        most: u64,
    },
    /// The file is not a list of tokens.
    #[error("{path} is not a list of tokens (expected ids in JSON, as in [0, 17, 254]): {reason}")]
    List {
        /// The file.
        path: PathBuf,
        /// The JSON parser's message.
        reason: String,
    },
    /// The text has no tokens, or the list is empty.
    #[error("expected tokens to keep, found none; use a longer text or a longer list")]
    Empty,
    /// A token is outside the vocabulary.
    #[error("expected tokens below the vocabulary size {vocab}, found {token}")]
    Outside {
        /// The token.
        token: TokenId,
        /// Number of vocabulary entries.
        vocab: usize,
    },
    /// The maximum is below the number of tokens that are always kept.
    #[error("expected at least {always} tokens, the number of special and single-byte tokens, found {most}")]
    Few {
        /// Number of tokens that are always kept.
        always: usize,
        /// The requested maximum.
        most: usize,
    },
    /// No token would be removed.
    #[error("all {vocab} tokens of the vocabulary would be kept; use a shorter text or a smaller size")]
    Whole {
        /// Number of vocabulary entries.
        vocab: usize,
    },
    /// The model is an encoder, which generates no tokens.
    #[error("expected a chat model, found an encoder, whose vocabulary cannot be pruned")]
    Encoder,
    /// The text cannot be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl VocabSubset {
    /// Reads a file: a list of ids if it ends with `.json`, else a text.
    ///
    /// # Errors
    /// [`VocabSubsetError::Read`], [`VocabSubsetError::TooLong`] and [`VocabSubsetError::List`].
    pub fn read(path: &Path, most: Option<usize>) -> Result<Self, VocabSubsetError> {
        let text = narthex_files::read(path, MAX_BYTES).and_then(narthex_files::user_text);
        let text = text.map_err(|source| match source.kind() {
            io::ErrorKind::FileTooLarge => {
                VocabSubsetError::TooLong { path: path.to_owned(), most: MAX_BYTES }
            }
            _ => VocabSubsetError::Read { path: path.to_owned(), source },
        })?;
        let listed = path.extension().is_some_and(|extension| extension == "json");
        let source = if listed {
            Source::List(serde_json::from_str(&text).map_err(|error| VocabSubsetError::List {
                path: path.to_owned(),
                reason: error.to_string(),
            })?)
        } else {
            Source::Text(text)
        };
        Ok(Self { source, most })
    }

    /// Returns the suffix of the name of a model with these tokens: `vocab16384-1f3a9c2b`, with the beginning of the
    /// digest of the text or list.
    pub fn slug(&self) -> String {
        let mut hash = Sha256::new();
        match &self.source {
            Source::Text(text) => hash.update(text),
            Source::List(tokens) => tokens.iter().for_each(|token| hash.update(token.to_le_bytes())),
        }
        let [a, b, c, d, ..]: [u8; 32] = hash.finalize().into();
        let size = self.most.map(|most| most.to_string()).unwrap_or_default();
        format!("vocab{size}-{:08x}", u32::from_be_bytes([a, b, c, d]))
    }

    /// Returns the tokens that a model keeps, in ascending order.
    ///
    /// # Errors
    /// [`VocabSubsetError`] if the source has no tokens or unknown tokens, if the maximum is too low, or if nothing
    /// would be removed.
    pub(crate) fn kept(
        &self,
        tokenizer: &Tokenizer,
        checkpoint: &Checkpoint,
    ) -> Result<Vec<TokenId>, VocabSubsetError> {
        let Architecture::Decoder(arch) = &checkpoint.architecture else {
            return Err(VocabSubsetError::Encoder);
        };

        let vocab = arch.vocab;
        let wanted = match &self.source {
            Source::Text(text) => tokens_by_frequency(text, tokenizer)?,
            Source::List(tokens) => tokens.clone(),
        };

        if wanted.is_empty() {
            return Err(VocabSubsetError::Empty);
        }
        if let Some(&token) = wanted.iter().find(|&&token| token as usize >= vocab) {
            return Err(VocabSubsetError::Outside { token, vocab });
        }

        let special = &checkpoint.special;
        let named = special.stop.iter().chain(&special.bos).chain(&special.pad).copied();
        let marked = tokenizer.special_tokens().iter().map(|token| token.id);
        let bytes = (0..vocab as TokenId).filter(|&token| tokenizer.token_bytes(token).len() == 1);
        let always = named.chain(marked).chain(bytes).filter(|&token| (token as usize) < vocab);
        let mut kept: BTreeSet<TokenId> = always.collect();
        let most = self.most.unwrap_or(vocab);
        if most < kept.len() {
            return Err(VocabSubsetError::Few { always: kept.len(), most });
        }

        for token in wanted {
            if kept.len() == most {
                break;
            }
            kept.insert(token);
        }

        if kept.len() == vocab {
            Err(VocabSubsetError::Whole { vocab })
        } else {
            Ok(kept.into_iter().collect())
        }
    }
}

/// Returns the tokens of a text, the most frequent first; equally frequent tokens are in order of their ids.
fn tokens_by_frequency(text: &str, tokenizer: &Tokenizer) -> Result<Vec<TokenId>, VocabSubsetError> {
    let mut counts = vec![0u64; tokenizer.vocab_size()];
    for piece in pieces(text) {
        for token in tokenizer.encode(piece, Specials::AsText)? {
            if let Some(count) = counts.get_mut(token as usize) {
                *count += 1;
            }
        }
    }
    let mut tokens: Vec<TokenId> =
        (0..).zip(&counts).filter(|(_, count)| **count > 0).map(|(token, _)| token).collect();
    tokens.sort_by_key(|&token| Reverse(counts[token as usize]));
    Ok(tokens)
}

/// Splits a text into pieces of whole lines, or of whole characters if a line is longer than a piece.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let window = text.get(..text.floor_char_boundary(PIECE))?;
        let end = if window.len() == text.len() { None } else { window.rfind('\n').map(|at| at + 1) };
        let (piece, rest) = text.split_at_checked(end.unwrap_or(window.len()))?;
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the tiny Llama: three special tokens, 256 bytes, 41 merges.
    fn tiny() -> (Checkpoint, Tokenizer) {
        let folder = tempfile::tempdir().unwrap();
        narthex_testkit::checkpoint::tiny_llama_safetensors(folder.path(), 7).unwrap();
        let json = std::fs::read(folder.path().join("tokenizer.json")).unwrap();
        (narthex_checkpoint::open(folder.path()).unwrap(), Tokenizer::from_json(&json).unwrap())
    }

    #[test]
    fn special_tokens_and_bytes_stay_and_the_most_frequent_join_them() {
        let (checkpoint, tokenizer) = tiny();
        let kept = |source: Source, most| VocabSubset { source, most }.kept(&tokenizer, &checkpoint);
        let text = || Source::Text("the cat. the cat. the".to_owned());
        let all = kept(text(), None).unwrap();
        let tokens = tokenizer.encode("the cat. the cat. the", Specials::AsText).unwrap();
        assert!(tokens.iter().all(|token| all.contains(token)) && all.is_sorted());
        assert!((0..259).all(|token| all.contains(&token)), "special tokens and bytes");
        let merged = tokens_by_frequency("the cat. the cat. the", &tokenizer).unwrap();
        let first = merged.iter().copied().find(|&token| token >= 259).unwrap();
        let one = kept(text(), Some(260)).unwrap();
        assert_eq!((one.len(), one[259]), (260, first));
        let listed = kept(Source::List(vec![290, 270, 290, 280]), Some(261)).unwrap();
        assert_eq!(listed[259..], [270, 290], "the maximum number, in the order of the list");
        let slug = |most| VocabSubset { source: text(), most }.slug();
        assert!(slug(Some(260)).starts_with("vocab260-") && slug(None).len() == "vocab-".len() + 8);
    }

    #[test]
    fn invalid_vocabularies_are_refused() {
        let (checkpoint, tokenizer) = tiny();
        let check = |source: Source, most, expect: &str| {
            let error = VocabSubset { source, most }.kept(&tokenizer, &checkpoint).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(Source::List(vec![]), None, "expected tokens to keep, found none");
        check(Source::Text(String::new()), None, "expected tokens to keep, found none");
        check(Source::List(vec![3, 300]), None, "below the vocabulary size 300, found 300");
        check(Source::List(vec![270]), Some(258), "expected at least 259 tokens");
        check(Source::List((0..300).collect()), None, "all 300 tokens of the vocabulary would be kept");
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            VocabSubset::read(&path, None)
        };
        assert_eq!(file("a.json", b"[5, 6]").unwrap().source, Source::List(vec![5, 6]));
        assert_eq!(file("a.txt", b"[5, 6]").unwrap().source, Source::Text("[5, 6]".to_owned()));
        assert!(file("b.json", b"[-1]").unwrap_err().to_string().contains("is not a list of tokens"));
        assert!(file("b.txt", b"\xff").unwrap_err().to_string().contains("cannot read"));
    }

    #[test]
    fn a_long_text_is_read_in_pieces_of_whole_lines() {
        let line = format!("{}\n", "\u{e9}".repeat(1000));
        let text = line.repeat(100);
        let found: Vec<&str> = pieces(&text).collect();
        assert!(found.len() > 3 && found.iter().all(|piece| piece.ends_with('\n')), "{}", found.len());
        assert_eq!(found.concat(), text);
        let long = "\u{e9}".repeat(PIECE);
        assert_eq!(pieces(&long).collect::<String>(), long);
        assert_eq!(pieces("").count(), 0);
    }
}
