//! Settings of a model from its `config.json`, for values that its graph does not state, such as the maximum sequence
//! length.

use std::{ops::RangeInclusive, path::Path};

use serde::Deserialize;

use super::refused;
use crate::error::{CompileError, Result};
use narthex_checkpoint::{
    CheckpointError,
    hf::{
        CONFIG, classifier,
        config::{Config, TokenIds},
        folder::Folder,
    },
    limits::{CONTEXT, HEADS, VOCAB, WIDTH, bounded},
};

/// The configuration file of onnxruntime-genai; a folder with it has a model of this format.
pub(super) const GENAI_CONFIG: &str = "genai_config.json";

/// Settings of a model that its graph may not state.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// The file that they come from.
    pub(super) file: String,
    /// `true` if the file does not exist.
    pub(super) is_missing: bool,
    pub(super) vocab: Option<usize>,
    pub(super) hidden: Option<usize>,
    pub(super) heads: Option<usize>,
    pub(super) kv_heads: Option<usize>,
    pub(super) head_size: Option<usize>,
    /// Maximum sequence length, in tokens.
    pub(super) context: Option<usize>,
    /// Number of a classifier's labels, if it is stated.
    pub(super) labels: Option<usize>,
    /// The whole file, unless it is that of onnxruntime-genai or does not exist.
    pub(super) config: Option<Config>,
    pub(super) ids: TokenIds,
    /// Value of empty slots in an integer past.
    pub(super) empty: f32,
}

/// Keys of `config.json` with the aliases of different families.
#[derive(Deserialize)]
struct ConfigKeys {
    vocab_size: Option<usize>,
    #[serde(default, alias = "n_embd", alias = "d_model", alias = "dim")]
    hidden_size: Option<usize>,
    #[serde(default, alias = "n_head", alias = "n_heads")]
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default, alias = "n_positions", alias = "n_ctx", alias = "max_seq_len")]
    max_position_embeddings: Option<usize>,
    model_type: Option<String>,
}

/// Families whose position table starts with two rows for padding.
const BEHIND_PADDING: [&str; 4] = ["roberta", "xlm-roberta", "camembert", "mpnet"];

/// Number of those rows.
const PADDING_ROWS: usize = 2;

impl Settings {
    /// Reads `config.json`. Without the file, no setting is stated.
    pub(super) fn read(folder: &mut Folder) -> Result<Self, CheckpointError> {
        if !folder.has(CONFIG) {
            return Ok(Self { file: CONFIG.to_owned(), is_missing: true, ..Self::default() });
        }

        let config = Config::read(folder)?;
        let keys: ConfigKeys = config.keys()?;
        let path = config.path();
        let hidden = checked(path, "hidden_size", keys.hidden_size, &WIDTH)?;
        let heads = checked(path, "num_attention_heads", keys.num_attention_heads, &HEADS)?;
        let derived = hidden.zip(heads).map(|(hidden, heads)| hidden / heads).filter(|&size| size > 0);
        let behind = keys.model_type.is_some_and(|family| BEHIND_PADDING.contains(&family.as_str()));
        let context = checked(path, "max_position_embeddings", keys.max_position_embeddings, &CONTEXT)?;
        let context = context.map(|rows| if behind { rows.saturating_sub(PADDING_ROWS) } else { rows });

        Ok(Self {
            file: CONFIG.to_owned(),
            vocab: checked(path, "vocab_size", keys.vocab_size, &VOCAB)?,
            hidden,
            heads,
            kv_heads: checked(path, "num_key_value_heads", keys.num_key_value_heads, &HEADS)?,
            head_size: checked(path, "head_dim", keys.head_dim, &WIDTH)?.or(derived),
            context: context.filter(|&context| context > 0),
            labels: classifier::count(&config)?,
            ids: config.ids().clone(),
            config: Some(config),
            ..Self::default()
        })
    }

    /// Returns the number of vocabulary entries.
    pub(super) fn vocab(&self) -> Result<usize> {
        self.stated("vocab_size", self.vocab)
    }

    /// Returns a number that must be stated in the graph or in the settings.
    pub(super) fn stated(&self, key: &str, value: Option<usize>) -> Result<usize> {
        value.ok_or_else(|| match self.is_missing {
            true => CompileError::NoSettings { file: self.file.clone(), key: key.to_owned() },
            false => refused(format!("{key} of {}", self.file), "a number", "none"),
        })
    }
}

/// Checks that a number of the file `path` is in `range`, if it is stated.
pub(super) fn checked(
    path: &Path,
    what: &str,
    value: Option<usize>,
    range: &RangeInclusive<usize>,
) -> Result<Option<usize>, CheckpointError> {
    value.map(|value| bounded(path, what, value, range)).transpose()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn numbers_stand_under_each_family_s_names() {
        let check = |config: Value, expect: [Option<usize>; 4]| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(CONFIG), config.to_string()).unwrap();
            let found = Settings::read(&mut Folder::new(folder.path())).unwrap();
            assert_eq!([found.vocab, found.hidden, found.head_size, found.context], expect, "{config}");
        };
        check(
            json!({"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 64}),
            [Some(9), Some(8), Some(4), Some(64)],
        );
        check(json!({"n_embd": 8, "n_head": 4, "n_positions": 32}), [None, Some(8), Some(2), Some(32)]);
        check(json!({"dim": 8, "n_heads": 1, "head_dim": 16}), [None, Some(8), Some(16), None]);
        let roberta = json!({"model_type": "roberta", "max_position_embeddings": 514});
        check(roberta, [None, None, None, Some(512)]);
        check(json!({"model_type": "mpnet", "max_position_embeddings": 2}), [None; 4]);
    }

    #[test]
    fn a_number_that_is_nowhere_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let found = Settings::read(&mut Folder::new(folder.path())).unwrap();
        let error = found.vocab().unwrap_err().to_string();
        assert!(error.contains("no config.json") && error.contains("vocab_size"), "{error}");
        std::fs::write(folder.path().join(CONFIG), "{}").unwrap();
        let found = Settings::read(&mut Folder::new(folder.path())).unwrap();
        let error = found.vocab().unwrap_err().to_string();
        assert!(error.contains("vocab_size of config.json") && error.contains("a number"), "{error}");
    }
}
