//! Pooling of an encoder's rows into one vector, from the files of sentence-transformers.
//!
//! `modules.json` lists the modules, and `1_Pooling/config.json` has the pooling mode. A folder without them has the
//! pooling of its family, if that is known. Its vectors are scaled to unit length: embeddings are compared by cosine,
//! which does not depend on the length.

use narthex_spec::{
    TokenId,
    arch::{EncoderHead, Pooling},
};
use serde::Deserialize;

use super::{
    CONFIG,
    folder::{Folder, inside},
};
use crate::{
    error::{CheckpointError, Result},
    limits::{malformed, unsupported},
    pooling::{PoolingSource, family, names},
};

/// Default folder of the pooling module if `modules.json` does not state one.
const USUAL_POOLING: &str = "1_Pooling";

/// Settings of sentence-transformers for an encoder.
#[derive(Debug, PartialEq, Eq)]
pub struct SentenceEmbedding {
    /// Pooling of rows into one vector; the mean if its source is unknown.
    pub pooling: Pooling,
    /// Source of the pooling.
    pub source: PoolingSource,
    /// True if the vector is scaled to unit length.
    pub normalize: bool,
    /// Maximum text length, in tokens.
    pub max_length: Option<usize>,
    /// Linear layers between pooling and vector.
    pub dense: Vec<DenseModule>,
    /// Tokens of the answers yes and no of a reranker whose score is the difference of their logits.
    pub answers: Option<[TokenId; 2]>,
    /// True if `modules.json` lists a pooling; false for cross-encoders and for folders without the file.
    pub listed: bool,
}

/// A linear layer without a bias.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseModule {
    /// Folder of its files.
    pub folder: String,
    /// Numbers of outputs and inputs.
    pub shape: [usize; 2],
}

impl SentenceEmbedding {
    /// Returns the settings of a folder without files of sentence-transformers, with this pooling.
    pub(crate) fn of_pooling(pooling: Pooling, source: PoolingSource) -> Self {
        Self {
            pooling,
            source,
            normalize: true,
            max_length: None,
            dense: Vec::new(),
            answers: None,
            listed: false,
        }
    }

    /// Returns these settings with the pooling that the user states, if any.
    pub fn requested(self, requested: Option<Pooling>) -> Self {
        match requested {
            Some(pooling) => Self { pooling, source: PoolingSource::Request, ..self },
            None => self,
        }
    }

    /// Returns the pooling; `file` is for the error.
    ///
    /// # Errors
    /// [`CheckpointError::NoPooling`] if its source is unknown.
    pub fn known(&self, file: &str) -> Result<Pooling> {
        match self.source {
            PoolingSource::Unknown => Err(CheckpointError::NoPooling { path: file.into() }),
            PoolingSource::Files | PoolingSource::Family(_) | PoolingSource::Request => Ok(self.pooling),
        }
    }

    /// Returns the encoder head with these settings.
    pub fn embedding(&self) -> EncoderHead {
        EncoderHead::Embedding { pooling: self.pooling, normalize: self.normalize }
    }
}

#[derive(Deserialize)]
struct Module {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    path: String,
}

#[derive(Deserialize)]
struct Limits {
    max_seq_length: Option<usize>,
}

/// Keys of the pooling mode: any of `pooling_mode_*`, or the single `pooling_mode` of newer versions.
#[derive(Deserialize)]
struct PoolingKeys {
    pooling_mode: Option<serde_json::Value>,
    include_prompt: Option<bool>,
    #[serde(flatten)]
    rest: std::collections::BTreeMap<String, serde_json::Value>,
}

/// File that lists the modules.
const MODULES: &str = "modules.json";

/// Reads `modules.json` and the files that it lists.
pub fn read(folder: &mut Folder) -> Result<SentenceEmbedding> {
    let max_length = folder
        .json::<Limits>("sentence_bert_config.json", "an object with max_seq_length")?
        .and_then(|limits| limits.max_seq_length);
    let Some(modules) = folder.json::<Vec<Module>>(MODULES, "a list of modules")? else {
        let unlisted = match pooling(folder, USUAL_POOLING)? {
            Some(pooling) => SentenceEmbedding::of_pooling(pooling, PoolingSource::Files),
            None => of_family(folder)?,
        };
        return Ok(SentenceEmbedding { max_length, ..unlisted });
    };
    let mut sentence = SentenceEmbedding {
        normalize: false,
        max_length,
        ..SentenceEmbedding::of_pooling(Pooling::Mean, PoolingSource::Files)
    };

    for (at, module) in modules.iter().enumerate() {
        // The list is untrusted and must not refer to files outside the folder.
        if !inside(&module.path) {
            return Err(malformed(&folder.file(MODULES), "modules inside the folder", &module.path));
        }
        let name = module.kind.rsplit('.').next().unwrap_or_default();
        match (at, name) {
            (0, "Transformer") if module.path.is_empty() || module.path == "." => {}
            (0, "Transformer") => {
                return Err(unsupported("path of the Transformer module", "the folder itself", &module.path));
            }
            (1, "Pooling") => {
                let path = folder.file(&module.path).join("config.json");
                let found = pooling(folder, &module.path)?;
                sentence.pooling =
                    found.ok_or_else(|| malformed(&path, "a pooling configuration", "no file"))?;
                sentence.listed = true;
            }
            (1, "LogitScore") => sentence.answers = Some(answers(folder, &module.path)?),
            (2.., "Dense") if !sentence.normalize => sentence.dense.push(dense(folder, &module.path)?),
            (2.., "Normalize") if at + 1 == modules.len() => sentence.normalize = true,
            _ => {
                let expected = "Transformer, Pooling, Dense and Normalize, in this order";
                return Err(unsupported("sentence-transformers module", expected, &module.kind));
            }
        }
    }
    Ok(sentence)
}

/// Keys of the tokens of a reranker's answers.
#[derive(Deserialize)]
struct LogitScoreKeys {
    true_token_id: TokenId,
    false_token_id: Option<TokenId>,
}

/// Reads the tokens of the answers yes and no of the module in `path`.
fn answers(folder: &mut Folder, path: &str) -> Result<[TokenId; 2]> {
    let name = format!("{path}/config.json");
    let expected = "the tokens of a LogitScore module";
    let keys = folder.json::<LogitScoreKeys>(&name, expected)?;
    match keys.ok_or_else(|| malformed(&folder.file(&name), expected, "no file"))? {
        LogitScoreKeys { true_token_id: yes, false_token_id: Some(no) } => Ok([yes, no]),
        LogitScoreKeys { false_token_id: None, .. } => {
            Err(unsupported("false_token_id of a LogitScore module", "the token of the answer no", "none"))
        }
    }
}

/// The key of `config.json` with the name of the model when it was saved.
#[derive(Deserialize)]
pub(crate) struct SavedName {
    pub(crate) _name_or_path: Option<String>,
}

/// Returns the settings of the model's family.
fn of_family(folder: &mut Folder) -> Result<SentenceEmbedding> {
    let saved = folder.json::<SavedName>(CONFIG, "an object with the model's settings")?;
    let mut names = names(folder.path());
    names.extend(saved.and_then(|saved| saved._name_or_path));
    Ok(match family(&names) {
        Some((family, pooling)) => SentenceEmbedding::of_pooling(pooling, PoolingSource::Family(family)),
        None => SentenceEmbedding::of_pooling(Pooling::Mean, PoolingSource::Unknown),
    })
}

/// Keys of a linear layer.
#[derive(Deserialize)]
struct DenseKeys {
    in_features: usize,
    out_features: usize,
    bias: Option<bool>,
    activation_function: Option<String>,
}

/// Reads the settings of the linear layer in `path`.
fn dense(folder: &mut Folder, path: &str) -> Result<DenseModule> {
    let name = format!("{path}/config.json");
    let keys = folder.json::<DenseKeys>(&name, "the settings of a Dense module")?;
    let keys =
        keys.ok_or_else(|| malformed(&folder.file(&name), "the settings of a Dense module", "no file"))?;
    if keys.bias != Some(false) {
        return Err(unsupported("bias of a Dense module", "false", true));
    }
    match keys.activation_function {
        Some(function) if function.rsplit('.').next() == Some("Identity") => {}
        other => {
            let found = other.unwrap_or_else(|| "torch.nn.modules.activation.Tanh".to_owned());
            return Err(unsupported("activation_function of a Dense module", "Identity", found));
        }
    }
    Ok(DenseModule { folder: path.to_owned(), shape: [keys.out_features, keys.in_features] })
}

/// Returns the pooling of the module in `path`, or `None` if it has no configuration.
fn pooling(folder: &mut Folder, path: &str) -> Result<Option<Pooling>> {
    let name = format!("{path}/config.json");
    let Some(keys) = folder.json::<PoolingKeys>(&name, "a pooling configuration")? else { return Ok(None) };
    if keys.include_prompt == Some(false) {
        return Err(unsupported(
            "include_prompt of the pooling",
            "true: a prompt counts like any text",
            false,
        ));
    }
    let modes: Vec<String> = match keys.pooling_mode {
        Some(serde_json::Value::String(mode)) => vec![mode],
        Some(other) => return Err(unsupported("pooling_mode", "mean, cls, max or lasttoken", other)),
        None => {
            let set = keys.rest.into_iter().filter(|(_, value)| *value == serde_json::Value::Bool(true));
            set.filter_map(|(key, _)| key.strip_prefix("pooling_mode_").map(str::to_owned)).collect()
        }
    };
    match modes.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["mean" | "mean_tokens"] => Ok(Some(Pooling::Mean)),
        ["cls" | "cls_token"] => Ok(Some(Pooling::Cls)),
        ["max" | "max_tokens"] => Ok(Some(Pooling::Max)),
        ["lasttoken"] => Ok(Some(Pooling::Last)),
        _ => Err(unsupported("pooling", "exactly one of mean, cls, max and lasttoken", modes.join("+"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sentence(files: &[(&str, Value)]) -> Result<SentenceEmbedding> {
        let folder = tempfile::tempdir().unwrap();
        for (name, value) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, value.to_string()).unwrap();
        }
        read(&mut Folder::new(folder.path()))
    }

    fn modules(list: &[(&str, &str)]) -> (&'static str, Value) {
        let kinds = list.iter().map(|(kind, path)| json!({"type": format!("a.b.{kind}"), "path": path}));
        ("modules.json", kinds.collect())
    }

    fn check(files: &[(&str, Value)], pooling: Pooling, normalize: bool) {
        let listed = files.iter().any(|(name, _)| *name == "modules.json");
        let expect = SentenceEmbedding::of_pooling(pooling, PoolingSource::Files);
        assert_eq!(sentence(files).unwrap(), SentenceEmbedding { normalize, listed, ..expect });
    }

    fn refused(files: &[(&str, Value)], expect: &str) {
        let error = sentence(files).unwrap_err().to_string();
        assert!(error.contains(expect), "{error} lacks {expect}");
    }

    const MEAN: &str = "pooling_mode_mean_tokens";
    const CLS: &str = "pooling_mode_cls_token";
    const USUAL: &str = "1_Pooling/config.json";

    #[test]
    fn modules_decide_the_pooling() {
        let two = modules(&[("Transformer", ""), ("Pooling", "1_Pooling")]);
        let three = modules(&[("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]);
        check(&[three.clone(), (USUAL, json!({MEAN: true, CLS: false}))], Pooling::Mean, true);
        check(&[two.clone(), (USUAL, json!({MEAN: false, CLS: true}))], Pooling::Cls, false);
        check(&[two.clone(), (USUAL, json!({"pooling_mode": "cls"}))], Pooling::Cls, false);
        refused(
            &[two.clone(), (USUAL, json!({MEAN: true, CLS: true}))],
            "expected exactly one of mean, cls, max and lasttoken",
        );
        check(&[two.clone(), (USUAL, json!({"pooling_mode_max_tokens": true}))], Pooling::Max, false);
        check(&[two.clone(), (USUAL, json!({"pooling_mode_lasttoken": true}))], Pooling::Last, false);
        let other = json!({"pooling_mode_weightedmean_tokens": true});
        refused(&[two.clone(), (USUAL, other)], "pooling: found weightedmean_tokens");
        refused(&[two.clone(), (USUAL, json!({}))], "exactly one of");
        refused(&[two.clone(), (USUAL, json!({MEAN: true, "include_prompt": false}))], "include_prompt");
        refused(&[two.clone(), (USUAL, json!({"pooling_mode": 1}))], "pooling_mode: found 1");
        refused(&[two], "a pooling configuration, found no file");
    }

    #[test]
    fn a_list_without_a_pooling_is_that_of_a_cross_encoder() {
        let listed = |list: &[(&str, &str)], files: &[(&str, Value)]| {
            let files: Vec<_> = std::iter::once(modules(list)).chain(files.iter().cloned()).collect();
            sentence(&files).unwrap().listed
        };
        assert!(!listed(&[("Transformer", "")], &[]));
        assert!(listed(&[("Transformer", ""), ("Pooling", "1_Pooling")], &[(USUAL, json!({CLS: true}))]));
    }

    #[test]
    fn a_folder_without_modules_is_normalised_and_has_the_pooling_of_its_family() {
        check(&[(USUAL, json!({CLS: true}))], Pooling::Cls, true);
        let unknown = sentence(&[]).unwrap();
        assert_eq!(unknown, SentenceEmbedding::of_pooling(Pooling::Mean, PoolingSource::Unknown));
        assert!(unknown.known("model.onnx").is_err_and(|error| error.to_string().contains("model.onnx")));
        assert_eq!(unknown.requested(Some(Pooling::Max)).known("").unwrap(), Pooling::Max);
        let saved = (CONFIG, json!({"_name_or_path": "BAAI/bge-small-en-v1.5"}));
        let bge = sentence(std::slice::from_ref(&saved)).unwrap();
        assert_eq!(bge, SentenceEmbedding::of_pooling(Pooling::Cls, PoolingSource::Family("bge")));
        check(&[saved, (USUAL, json!({MEAN: true}))], Pooling::Mean, true);
    }

    #[test]
    fn other_modules_are_refused() {
        refused(&[modules(&[("Transformer", "0_Transformer")])], "path of the Transformer module");
        refused(&[modules(&[("Pooling", "1_Pooling")])], "module: found a.b.Pooling");
        let dense = modules(&[("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")]);
        let mean = (USUAL, json!({MEAN: true}));
        let with = |keys: Value| [dense.clone(), mean.clone(), ("2_Dense/config.json", keys)];
        let linear = json!({
            "in_features": 8, "out_features": 16, "bias": false, "activation_function": "torch.nn.Identity",
        });
        let found = sentence(&with(linear.clone())).unwrap();
        assert_eq!(found.dense, [DenseModule { folder: "2_Dense".to_owned(), shape: [16, 8] }]);
        let changed = |key: &str, value: Value| {
            let mut keys = linear.clone();
            keys[key] = value;
            with(keys)
        };
        refused(&changed("bias", json!(true)), "bias of a Dense module");
        refused(
            &changed("activation_function", json!("torch.nn.Tanh")),
            "activation_function of a Dense module",
        );
        refused(&[dense.clone(), mean.clone()], "the settings of a Dense module, found no file");
        let order = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2"), ("Dense", "3")];
        refused(&[modules(&order), mean], "module: found a.b.Normalize");
        let logits = modules(&[("Transformer", ""), ("LogitScore", "1_LogitScore")]);
        let one = ("1_LogitScore/config.json", json!({"true_token_id": 7, "false_token_id": null}));
        refused(&[logits, one], "false_token_id of a LogitScore module: found none");
        refused(
            &[modules(&[("Transformer", ""), ("Pooling", "../x")])],
            "modules inside the folder, found ../x",
        );
        refused(&[("modules.json", json!({"a": 1}))], "expected a list of modules");
    }

    #[test]
    fn the_longest_text_is_read() {
        let found = sentence(&[("sentence_bert_config.json", json!({"max_seq_length": 256}))]).unwrap();
        assert_eq!(found.max_length, Some(256));
        let found = sentence(&[("sentence_bert_config.json", json!({"max_seq_length": null}))]).unwrap();
        assert_eq!(found.max_length, None);
    }
}
