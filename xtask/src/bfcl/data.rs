//! Questions of the leaderboard: their messages, their functions as JSON schemas, and the correct answers.

use std::{fs, path::Path};

use anyhow::{Context, ensure};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

/// Number of calls in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calls {
    One,
    Several,
}

/// A category.
#[derive(Debug, Clone, Copy)]
pub(super) struct Category {
    pub(super) name: &'static str,
    /// Name of its files.
    file: &'static str,
    pub(super) calls: Calls,
}

/// The categories.
pub(super) const CATEGORIES: [Category; 3] = [
    Category { name: "simple", file: "BFCL_v4_simple_python.json", calls: Calls::One },
    Category { name: "multiple", file: "BFCL_v4_multiple.json", calls: Calls::One },
    Category { name: "parallel", file: "BFCL_v4_parallel.json", calls: Calls::Several },
];

/// A call of a model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: Value,
}

/// A question.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) id: String,
    pub(super) messages: Value,
    /// Functions in the notation of the leaderboard.
    pub(super) functions: Vec<AskedFunction>,
    /// For each expected call, the function with the possible values of each argument.
    pub(super) answers: Vec<Map<String, Value>>,
}

/// A function in the notation of the leaderboard, whose types have names of Python.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct AskedFunction {
    pub(super) name: String,
    description: String,
    pub(super) parameters: Value,
}

#[derive(Deserialize)]
struct QuestionLine {
    id: String,
    question: Vec<Value>,
    function: Vec<AskedFunction>,
}

#[derive(Deserialize)]
struct AnswerLine {
    id: String,
    ground_truth: Vec<Map<String, Value>>,
}

/// Reads a category from the package's folder.
pub(super) fn read(folder: &Path, category: Category) -> anyhow::Result<Vec<Question>> {
    let questions: Vec<QuestionLine> = lines(&folder.join(category.file))?;
    let answers: Vec<AnswerLine> = lines(&folder.join("possible_answer").join(category.file))?;
    ensure!(questions.len() == answers.len(), "{}: as many answers as questions are expected", category.file);
    let join = |(question, answer): (QuestionLine, AnswerLine)| {
        ensure!(question.id == answer.id, "expected the answer to {}, found {}", question.id, answer.id);
        let messages = question.question.into_iter().next().with_context(|| question.id.clone())?;
        let (functions, answers) = (question.function, answer.ground_truth);
        Ok(Question { id: question.id, messages, functions, answers })
    };
    questions.into_iter().zip(answers).map(join).collect()
}

fn lines<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| serde_json::from_str(line).with_context(|| path.display().to_string())).collect()
}

impl Question {
    /// Returns the functions as objects of OpenAI's `tools`.
    pub(super) fn tools(&self) -> Vec<Value> {
        let tool = |function: &AskedFunction| {
            let AskedFunction { name, description, parameters } = function;
            let parameters = schema(parameters);
            json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
        };
        self.functions.iter().map(tool).collect()
    }

    /// Returns the function with a name.
    pub(super) fn function(&self, name: &str) -> Option<&AskedFunction> {
        self.functions.iter().find(|function| function.name == name)
    }

    /// Checks that a call follows its function's schema.
    pub(super) fn validate(&self, call: &Call) -> Result<(), String> {
        let function =
            self.function(&call.name).ok_or_else(|| format!("no function is called {:?}", call.name))?;
        let validator =
            jsonschema::validator_for(&schema(&function.parameters)).map_err(|error| error.to_string())?;
        validator.validate(&call.arguments).map_err(|error| format!("{}: {error}", call.arguments))
    }
}

/// Returns a type of the leaderboard as a JSON schema.
fn schema(parameters: &Value) -> Value {
    let Some(fields) = parameters.as_object() else { return parameters.clone() };
    let mut translated = Map::new();
    for (key, value) in fields {
        let value = match (key.as_str(), value) {
            // JSON Schema has no such keyword, and `required` has the same information.
            ("optional", _) => continue,
            ("type", Value::String(name)) => Value::from(json_type(name)),
            ("properties", Value::Object(properties)) => {
                properties.iter().map(|(name, value)| (name.clone(), schema(value))).collect()
            }
            ("items", value) => schema(value),
            (_, value) => value.clone(),
        };
        translated.insert(key.clone(), value);
    }
    Value::Object(translated)
}

/// Returns the JSON name of a Python type, as the leaderboard translates it.
fn json_type(name: &str) -> &str {
    match name {
        "dict" => "object",
        "float" => "number",
        "tuple" => "array",
        "any" => "string",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_become_those_of_json() {
        let parameters = json!({
            "type": "dict",
            "properties": {
                "type": {"type": "string", "optional": true},
                "point": {"type": "tuple", "items": {"type": "float"}, "description": "a tuple"},
            },
            "required": ["point"],
        });
        let expect = json!({
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "point": {"type": "array", "items": {"type": "number"}, "description": "a tuple"},
            },
            "required": ["point"],
        });
        assert_eq!(schema(&parameters), expect);
        let functions = vec![AskedFunction { name: "f".to_owned(), description: String::new(), parameters }];
        let question = Question { id: "q".to_owned(), messages: json!([]), functions, answers: Vec::new() };
        let call = |name: &str, arguments: Value| Call { name: name.to_owned(), arguments };
        assert_eq!(question.validate(&call("f", json!({"point": [1, 2.5]}))), Ok(()));
        assert!(question.validate(&call("f", json!({"point": ["x"]}))).is_err());
        assert!(question.validate(&call("g", json!({}))).unwrap_err().contains("\"g\""));
    }
}
