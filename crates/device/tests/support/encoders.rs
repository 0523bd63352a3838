//! The tiny encoders of `goldens/encoders.py` and `goldens/classifiers.py`, with the reference's results.

#![allow(dead_code, reason = "each test program uses a part of this")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, path::PathBuf};

use narthex_spec::TokenId;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Names of the families with every head.
pub(crate) const FAMILIES: [&str; 5] = ["bert", "distilbert", "mobilebert", "roberta", "xlm-roberta"];

/// Names of the families that give vectors only.
const VECTOR_FAMILIES: [&str; 1] = ["nomic"];

/// Head of an encoder, or the pooling of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    Mean,
    Cls,
    Max,
    Last,
    Score,
    Spans,
    Masked,
    Labels,
    Tokens,
}

impl Head {
    /// Returns true for the heads whose goldens have labels.
    fn is_classifier(self) -> bool {
        matches!(self, Self::Labels | Self::Tokens)
    }

    pub(crate) const ALL: [Self; 9] = [
        Self::Mean,
        Self::Cls,
        Self::Max,
        Self::Last,
        Self::Score,
        Self::Spans,
        Self::Masked,
        Self::Labels,
        Self::Tokens,
    ];

    /// Returns the names of a pooling in `expected.json` and in sentence-transformers; `None` for a head.
    fn pooling(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Mean => Some(("mean", "mean_tokens")),
            Self::Cls => Some(("cls", "cls_token")),
            Self::Max => Some(("max", "max_tokens")),
            Self::Last => Some(("lasttoken", "lasttoken")),
            Self::Score | Self::Spans | Self::Masked | Self::Labels | Self::Tokens => None,
        }
    }

    /// Returns the suffix of the model's class name.
    fn class(self) -> &'static str {
        match self {
            Self::Score | Self::Labels => "ForSequenceClassification",
            Self::Tokens => "ForTokenClassification",
            Self::Spans => "ForQuestionAnswering",
            Self::Masked => "ForMaskedLM",
            Self::Mean | Self::Cls | Self::Max | Self::Last => "Model",
        }
    }
}

/// Returns values in the form that a head serves: scores as probabilities, since a logit may be near zero.
pub(crate) fn served(head: Head, values: Vec<f32>) -> Vec<f32> {
    let served = |value: f32| if head == Head::Score { 1.0 / (1.0 + (-value).exp()) } else { value };
    values.into_iter().map(served).collect()
}

/// An encoded text of the reference.
pub(crate) struct Input {
    pub(crate) tokens: Vec<TokenId>,
    /// Index of the second segment's first token.
    pub(crate) second: usize,
    /// Indices of the masked tokens.
    pub(crate) requested: Vec<usize>,
}

/// A family's checkpoint and the reference's results.
pub(crate) struct Golden {
    pub(crate) family: &'static str,
    folder: PathBuf,
    pub(crate) expected: Value,
    /// Checkpoint with heads of several labels.
    classifiers: PathBuf,
    /// The reference's results for it; null for families without it.
    pub(crate) classified: Value,
}

fn read_json(path: PathBuf) -> Option<Value> {
    Some(serde_json::from_slice(&fs::read(path).ok()?).unwrap())
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn whole(value: &Value) -> impl Iterator<Item = usize> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as usize)
}

impl Golden {
    pub(crate) fn read(family: &'static str) -> Self {
        let goldens = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../device/tests/goldens");
        let folder = goldens.join("encoders").join(family);
        let classifiers = goldens.join("classifiers").join(family);
        let expected = read_json(folder.join("expected.json")).unwrap();
        let classified = read_json(classifiers.join("expected.json")).unwrap_or_default();
        Self { family, folder, expected, classifiers, classified }
    }

    /// Returns the goldens of all families.
    pub(crate) fn every() -> impl Iterator<Item = Self> {
        FAMILIES.into_iter().chain(VECTOR_FAMILIES).map(Self::read)
    }

    /// Returns the heads of the family.
    pub(crate) fn heads(&self) -> impl Iterator<Item = Head> {
        let vectors_only = VECTOR_FAMILIES.contains(&self.family);
        Head::ALL.into_iter().filter(move |head| !vectors_only || head.pooling().is_some())
    }

    /// Returns a copy of the checkpoint with the class of the head.
    pub(crate) fn checkpoint(&self, head: Head) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        let folder = if head.is_classifier() { &self.classifiers } else { &self.folder };
        for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(folder.join(file), copy.path().join(file)).unwrap();
        }
        let mut config = read_json(folder.join("config.json")).unwrap();
        let body = config["architectures"][0].as_str().unwrap().strip_suffix("Model").unwrap().to_owned();
        config["architectures"] = json!([body + head.class()]);
        if head == Head::Spans {
            config.as_object_mut().unwrap().remove("id2label");
        }
        fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
        if let Some((_, mode)) = head.pooling() {
            let module = |kind: &str, path: &str| json!({"type": format!("s.models.{kind}"), "path": path});
            let modules = json!([module("Transformer", ""), module("Pooling", "1_Pooling")]);
            fs::write(copy.path().join("modules.json"), modules.to_string()).unwrap();
            fs::create_dir(copy.path().join("1_Pooling")).unwrap();
            let key = format!("pooling_mode_{mode}");
            fs::write(copy.path().join("1_Pooling/config.json"), json!({key: true}).to_string()).unwrap();
        }
        copy
    }

    /// Returns a copy as [`Self::checkpoint`] with only the second of two layers, as its first.
    pub(crate) fn second_layer(&self, head: Head) -> TempDir {
        let copy = self.checkpoint(head);
        let (config, weights) = (copy.path().join("config.json"), copy.path().join("model.safetensors"));
        let mut settings: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        let count = ["num_hidden_layers", "n_layers"].into_iter().find(|key| settings.get(key).is_some());
        settings[count.unwrap()] = json!(1);
        fs::write(config, settings.to_string()).unwrap();
        let bytes = fs::read(&weights).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut tensors: Map<String, Value> = serde_json::from_slice(&bytes[8..header]).unwrap();
        tensors.remove("__metadata__");
        let mut data = Vec::new();
        let left = tensors
            .into_iter()
            .filter(|(name, _)| !["layer.0.", "layers.0."].iter().any(|layer| name.contains(layer)));
        let left: Map<String, Value> = left
            .map(|(name, mut tensor)| {
                let at = |end: usize| header + tensor["data_offsets"][end].as_u64().unwrap() as usize;
                let begin = data.len();
                data.extend_from_slice(&bytes[at(0)..at(1)]);
                tensor["data_offsets"] = json!([begin, data.len()]);
                (name.replace("layer.1.", "layer.0.").replace("layers.1.", "layers.0."), tensor)
            })
            .collect();
        let left = Value::Object(left).to_string();
        let length = (left.len() as u64).to_le_bytes();
        fs::write(weights, [&length[..], left.as_bytes(), &data].concat()).unwrap();
        copy
    }

    /// Returns the vectors of one pooling.
    pub(crate) fn pooled(&self, name: &str) -> Vec<Vec<f32>> {
        self.expected["texts"].as_array().unwrap().iter().map(|text| numbers(&text[name])).collect()
    }

    /// Returns the texts for a head, and each one's rows.
    pub(crate) fn texts(&self, head: Head) -> (Vec<Input>, Vec<Vec<f32>>) {
        let results = if head.is_classifier() { &self.classified } else { &self.expected };
        let list = |name: &str| results[name].as_array().unwrap().iter();
        let input = |case: &Value| {
            let tokens: Vec<TokenId> = whole(&case["ids"]).map(|id| id as TokenId).collect();
            let types: Vec<usize> = case.get("types").map(|types| whole(types).collect()).unwrap_or_default();
            let second = types.iter().position(|segment| *segment == 1).unwrap_or(tokens.len());
            let requested = case.get("places").map(|places| whole(places).collect()).unwrap_or_default();
            Input { tokens, second, requested }
        };
        if let Some((name, _)) = head.pooling() {
            return (list("texts").map(input).collect(), self.pooled(name));
        }
        let rows = |case: &Value| match head {
            Head::Score => vec![case["logit"].as_f64().unwrap() as f32],
            Head::Spans => numbers(&case["spans"]),
            Head::Labels | Head::Tokens => numbers(&case["logits"]),
            _ => case["logits"].as_array().unwrap().iter().flat_map(numbers).collect(),
        };
        let name = match head {
            Head::Masked => "masked",
            Head::Labels => "labels",
            Head::Tokens => "tokens",
            _ => "pairs",
        };
        list(name).map(|case| (input(case), rows(case))).unzip()
    }
}
