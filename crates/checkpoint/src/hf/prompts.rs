//! Prefixes of an embedding model's inputs: `prompts` of `config_sentence_transformers.json`.

use std::collections::BTreeMap;

use narthex_spec::manifest::Prompts;
use serde::Deserialize;

use super::folder::Folder;
use crate::{error::Result, limits::malformed};

const FILE: &str = "config_sentence_transformers.json";

#[derive(Deserialize)]
struct SentenceTransformersKeys {
    prompts: Option<BTreeMap<String, String>>,
    default_prompt_name: Option<String>,
}

/// Reads the prompts; the result is empty if all of them are empty.
pub fn read(folder: &mut Folder) -> Result<Prompts> {
    let keys: Option<SentenceTransformersKeys> = folder.json(FILE, "the settings of an embedding model")?;
    let Some(SentenceTransformersKeys { prompts: Some(named), default_prompt_name: default }) = keys else {
        return Ok(Prompts::default());
    };
    if let Some(name) = default.as_ref().filter(|name| !named.contains_key(*name)) {
        let names: Vec<&str> = named.keys().map(String::as_str).collect();
        let expected = format!("a default_prompt_name among {}", names.join(", "));
        return Err(malformed(&folder.file(FILE), expected, name));
    }
    if named.values().all(String::is_empty) {
        return Ok(Prompts::default());
    }
    Ok(Prompts { named, default })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::open;

    fn prompts(settings: Value) -> Result<Prompts> {
        let folder = tempfile::tempdir().unwrap();
        narthex_testkit::checkpoint::tiny_bert_safetensors(folder.path(), 1).unwrap();
        std::fs::write(folder.path().join(FILE), settings.to_string()).unwrap();
        Ok(open(folder.path())?.prompts)
    }

    #[test]
    fn prompts_are_read_by_name() {
        let found = prompts(json!({
            "__version__": {}, "prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "passage",
        }))
        .unwrap();
        assert_eq!((found.named["query"].as_str(), found.default.as_deref()), ("query: ", Some("passage")));
        let none = [
            json!({}),
            json!({"prompts": {}, "default_prompt_name": null}),
            json!({"prompts": {"query": "", "document": ""}}),
        ];
        for settings in none {
            assert!(prompts(settings).unwrap().is_empty());
        }
    }

    #[test]
    fn broken_prompts_are_named() {
        let refused = |settings: Value, expect: &str| {
            let error = prompts(settings).unwrap_err().to_string();
            assert!(error.contains(expect) && error.contains(FILE), "{error}");
        };
        refused(
            json!({"prompts": {"query": "q: "}, "default_prompt_name": "web"}),
            "a default_prompt_name among query, found web",
        );
        refused(json!({"prompts": ["q"]}), "the settings of an embedding model");
    }
}
