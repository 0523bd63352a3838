//! Labels of classifiers.

use serde::{Deserialize, Serialize};

use super::Contradiction;

/// Labels of a classifier of texts or of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassifierEntry {
    /// Names of the labels, in the order of the scores.
    pub labels: Vec<String>,
    /// Problem that a classifier of texts was trained for; `None` if its publisher does not state it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<ClassifierProblem>,
}

/// Problem of a classifier of texts: `problem_type` of transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassifierProblem {
    /// A text has a number for each label.
    Regression,
    /// A text has one of the labels.
    SingleLabelClassification,
    /// A text has any number of the labels.
    MultiLabelClassification,
}

impl ClassifierEntry {
    /// Returns the name that transformers gives to a label without one.
    pub fn default_label(index: usize) -> String {
        format!("LABEL_{index}")
    }

    /// Fails unless there is a name for each of the scores of `head_labels` labels.
    pub(super) fn check(&self, head_labels: Option<usize>) -> Result<(), Contradiction> {
        let names = self.labels.len();
        match head_labels {
            Some(labels) if labels == names => Ok(()),
            Some(labels) => Err(Contradiction::new(format!("names of {labels} labels"), format!("{names}"))),
            None => Err(Contradiction::new("the labels of a classifier", "those of a model of another kind")),
        }
    }
}
