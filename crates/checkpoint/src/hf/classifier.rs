//! Labels of a classifier: `id2label` and `problem_type` of `config.json`.

use narthex_spec::manifest::{ClassifierEntry, ClassifierProblem};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::config::Config;
use crate::{error::Result, limits::malformed};

/// The keys of `config.json` with the number of labels.
#[derive(Debug, Deserialize)]
struct CountKeys {
    id2label: Option<Map<String, Value>>,
    num_labels: Option<usize>,
}

/// Returns the number of labels that `config.json` states: that of the names in `id2label`, or else `num_labels`.
pub fn count(config: &Config) -> Result<Option<usize>> {
    let CountKeys { id2label, num_labels } = config.keys()?;
    let names = id2label.map(|names| names.len()).filter(|&names| names > 0);
    Ok(names.or(num_labels).filter(|&labels| labels > 0))
}

/// The keys of `config.json` about labels.
#[derive(Debug, Deserialize)]
struct ClassifierKeys {
    id2label: Option<Map<String, Value>>,
    problem_type: Option<ClassifierProblem>,
}

/// Reads the names of the labels of a head, and the problem that it was trained for.
///
/// # Errors
/// [`CheckpointError::Malformed`](crate::CheckpointError::Malformed) unless the names are those of the numbers below `labels`,
/// or none are stated.
pub fn read(config: &Config, labels: usize) -> Result<ClassifierEntry> {
    let ClassifierKeys { id2label, problem_type } = config.keys()?;
    let Some(names) = id2label.filter(|names| !names.is_empty()) else {
        let labels = (0..labels).map(ClassifierEntry::default_label).collect();
        return Ok(ClassifierEntry { labels, problem: problem_type });
    };

    if names.len() != labels {
        let expected = format!("an id2label with {labels} names, as many as the classifier has labels");
        return Err(malformed(config.path(), expected, names.len()));
    }
    let labels = (0..labels).map(|index| label(config, &names, index));
    Ok(ClassifierEntry { labels: labels.collect::<Result<_>>()?, problem: problem_type })
}

/// Returns the name of the label with this number.
fn label(config: &Config, names: &Map<String, Value>, index: usize) -> Result<String> {
    match names.get(&index.to_string()) {
        Some(Value::String(name)) => Ok(name.clone()),
        Some(name @ (Value::Number(_) | Value::Bool(_))) => Ok(name.to_string()),
        Some(other) => Err(malformed(config.path(), format!("a name of label {index} in id2label"), other)),
        None => Err(malformed(config.path(), format!("label {index} in id2label"), "none")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn classifier(keys: Value, labels: usize) -> Result<ClassifierEntry> {
        read(&Config::new("config.json".into(), keys)?, labels)
    }

    #[test]
    fn labels_are_in_the_order_of_their_numbers() {
        let mut names: Map<String, Value> =
            (0..12).map(|index| (index.to_string(), json!(format!("label {index}")))).collect();
        names["11"] = json!(5);
        let found = classifier(json!({"id2label": names, "problem_type": null}), 12).unwrap();
        assert_eq!(
            found.labels[2..],
            [
                "label 2", "label 3", "label 4", "label 5", "label 6", "label 7", "label 8", "label 9",
                "label 10", "5"
            ]
        );
        assert_eq!(found.problem, None);
        let found = classifier(json!({"problem_type": "multi_label_classification"}), 2).unwrap();
        assert_eq!(found.labels, ["LABEL_0", "LABEL_1"]);
        assert_eq!(found.problem, Some(ClassifierProblem::MultiLabelClassification));
    }

    #[test]
    fn an_empty_list_of_names_states_no_number() {
        let labels = |keys: Value| count(&Config::new("config.json".into(), keys).unwrap()).unwrap();
        assert_eq!(labels(json!({"id2label": {"0": "a"}, "num_labels": 3})), Some(1));
        assert_eq!(labels(json!({"id2label": {}, "num_labels": 3})), Some(3));
        assert_eq!([labels(json!({"num_labels": 0})), labels(json!({}))], [None, None]);
    }

    #[test]
    fn other_labels_are_refused() {
        let refused = |keys: Value, expect: &str| {
            let error = classifier(keys, 2).unwrap_err().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        refused(json!({"id2label": {"0": "a"}}), "an id2label with 2 names");
        refused(json!({"id2label": {"0": "a", "2": "b"}}), "label 1 in id2label");
        refused(json!({"id2label": {"0": "a", "1": ["b"]}}), "a name of label 1");
        refused(json!({"problem_type": "ranking"}), "ranking");
    }
}
