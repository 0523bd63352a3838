//! Adapters as PEFT saves them: `adapter_config.json`, and for the module `model.layers.0.self_attn.q_proj` the matrices
//! `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` and `….lora_B.weight`.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
    path::Path,
};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{AdapterFiles, AdapterFormat, Matrix};
use crate::{
    error::Result,
    hf::folder::Folder,
    limits::{malformed, unsupported},
    safetensors::Shards,
};

pub(crate) const CONFIG: &str = "adapter_config.json";
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";

/// Next step for adapters that are more than low-rank updates.
const MERGE: &str = "merge the adapter with merge_and_unload of PEFT, and compile the result";

/// Settings that change what an adapter computes, and that must be absent, `false` or empty.
const OTHER_FORMS: [&str; 13] = [
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "use_mora",
];

/// Initialisations that leave the weights of the model as they are.
const INITIALISATIONS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// Keys of `adapter_config.json`.
#[derive(Debug, Deserialize)]
struct PeftKeys {
    peft_type: Option<String>,
    r: Option<usize>,
    lora_alpha: Option<f64>,
    bias: Option<String>,
    init_lora_weights: Option<Value>,
    use_rslora: Option<bool>,
    rank_pattern: Option<BTreeMap<String, usize>>,
    alpha_pattern: Option<BTreeMap<String, f64>>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Opens the adapter in a folder.
pub(super) fn open(path: &Path) -> Result<AdapterFiles> {
    let mut folder = Folder::new(path);
    let config = folder.file(CONFIG);
    let Some(keys) = folder.json::<PeftKeys>(CONFIG, "settings of an adapter of PEFT")? else {
        let expected = format!("a GGUF file of an adapter, or a folder with {CONFIG} and {WEIGHTS}");
        return Err(unsupported("adapter", expected, path.display()));
    };
    keys.check().map_err(|error| error.in_file(&config))?;
    if !folder.has(WEIGHTS) && folder.has("adapter_model.bin") {
        let expected = format!("{WEIGHTS}; save the adapter again as safetensors");
        return Err(unsupported("file of the adapter", expected, "adapter_model.bin").in_file(path));
    }

    let file = folder.file(WEIGHTS);
    let mut shards = Shards { maps: Vec::new(), by_name: HashMap::new(), files: Vec::new() };
    shards.read_as(file.clone(), "")?;
    let Some(map) = shards.maps.pop() else { return Err(malformed(&file, "tensors", "none")) };
    let mut matrices = Vec::with_capacity(shards.by_name.len());
    for (name, tensor) in shards.by_name {
        let Some((module, matrix)) = matrix(&name) else {
            let expected = format!("only lora_A and lora_B of linear layers; {MERGE}");
            return Err(unsupported("tensor of the adapter", expected, &name).in_file(&file));
        };
        matrices.push((module.to_owned(), matrix, tensor));
    }
    let factor = |module: &str, rank: usize| keys.factor(&config, module, rank);
    AdapterFiles::new(AdapterFormat::Peft, file.clone(), map, matrices, factor)
}

/// Returns the module and the matrix that a tensor is; `None` for another tensor.
fn matrix(name: &str) -> Option<(&str, Matrix)> {
    let name = name.strip_prefix("base_model.model.")?.strip_suffix(".weight")?;
    // Old versions write the name of the adapter in memory.
    let name = name.strip_suffix(".default").unwrap_or(name);
    let (module, matrix) = name.rsplit_once('.')?;
    match matrix {
        "lora_A" => Some((module, Matrix::Down)),
        "lora_B" => Some((module, Matrix::Up)),
        _ => None,
    }
}

impl PeftKeys {
    /// Refuses adapters that are more than low-rank updates of the weights of a model.
    fn check(&self) -> Result<()> {
        if let Some(kind) = self.peft_type.as_deref().filter(|kind| !kind.eq_ignore_ascii_case("LORA")) {
            return Err(unsupported("peft_type", format!("LORA; {MERGE}"), kind));
        }
        if let Some(bias) = self.bias.as_deref().filter(|bias| *bias != "none") {
            return Err(unsupported("bias", format!("none; {MERGE}"), bias));
        }
        let other = OTHER_FORMS.into_iter().find(|key| self.others.get(*key).is_some_and(is_set));
        if let Some(key) = other {
            return Err(unsupported("form of the adapter", format!("LORA without {key}; {MERGE}"), key));
        }
        let patterns = self.rank_pattern.iter().flat_map(BTreeMap::keys);
        let mut patterns = patterns.chain(self.alpha_pattern.iter().flat_map(BTreeMap::keys));
        let is_name = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
        if let Some(pattern) = patterns.find(|pattern| !pattern.chars().all(is_name)) {
            let expected = format!("names of modules in rank_pattern and alpha_pattern; {MERGE}");
            return Err(unsupported("pattern", expected, pattern));
        }

        match &self.init_lora_weights {
            Some(Value::String(method)) if !INITIALISATIONS.contains(&method.as_str()) => {
                let expected = "an adapter for the unchanged weights of its model; save it with \
                                path_initial_model_for_weight_conversion of PEFT";
                Err(unsupported("init_lora_weights", expected, method))
            }
            _ => Ok(()),
        }
    }

    /// Returns the factor of a module's update, which has this rank.
    fn factor(&self, config: &Path, module: &str, rank: usize) -> Result<f32> {
        let stated = of_module(self.rank_pattern.as_ref(), module).or(self.r).unwrap_or(8);
        if stated != rank {
            return Err(malformed(config, format!("the rank {rank} of {module}"), stated));
        }
        let alpha = of_module(self.alpha_pattern.as_ref(), module).or(self.lora_alpha).unwrap_or(8.0);
        let divisor = rank as f64;
        let divisor = if self.use_rslora == Some(true) { divisor.sqrt() } else { divisor };
        Ok((alpha / divisor) as f32)
    }
}

/// Returns whether a setting is present and switched on.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
        _ => true,
    }
}

/// Returns the value of the pattern that matches a module, the alphabetically first of several. A pattern matches the whole name
/// of a module, or its end after a dot.
fn of_module<T: Copy>(patterns: Option<&BTreeMap<String, T>>, module: &str) -> Option<T> {
    let patterns = patterns?;
    let ends = module.match_indices('.').map(|(dot, _)| &module[dot + 1..]);
    let matching = iter::once(module).chain(ends).filter_map(|end| patterns.get_key_value(end));
    matching.min_by_key(|(pattern, _)| *pattern).map(|(_, value)| *value)
}
