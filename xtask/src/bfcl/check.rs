//! The leaderboard's comparison of calls with the possible answers, for Python functions: names, types and values.

use serde_json::{Map, Value};

use super::data::{AskedFunction, Call, Question};

/// A Python type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PythonType {
    Str,
    Int,
    Float,
    Bool,
    List,
    Dict,
    NoneType,
}

/// Use of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueUsage {
    Literal,
    /// A value of the answers' type instead of the function's type.
    Variable,
}

/// Returns whether the calls are right, in any order: each expected call takes the first one that fits.
pub(super) fn is_right(question: &Question, calls: &[Call]) -> bool {
    if calls.len() != question.answers.len() {
        return false;
    }
    let mut rest: Vec<&Call> = calls.iter().collect();
    question.answers.iter().all(|answer| {
        let Some((name, values)) = answer.iter().next() else { return false };
        let (Some(function), Some(values)) = (question.function(name), values.as_object()) else {
            return false;
        };
        let fits = rest.iter().position(|call| call.name == *name && fits(function, &call.arguments, values));
        fits.map(|index| rest.remove(index)).is_some()
    })
}

fn fits(function: &AskedFunction, arguments: &Value, answers: &Map<String, Value>) -> bool {
    let Some(arguments) = arguments.as_object() else { return false };
    let properties = &function.parameters["properties"];
    let required = function.parameters["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let has_required = required.iter().filter_map(Value::as_str).all(|name| arguments.contains_key(name));
    let values = arguments.iter().all(|(name, value)| {
        match (properties.get(name), answers.get(name).and_then(Value::as_array)) {
            (Some(property), Some(answers)) => is_possible(property, value, answers),
            _ => false,
        }
    });
    // An empty text among the answers marks an optional argument.
    let may_be_absent = |answers: &Value| answers.as_array().is_some_and(|list| list.iter().any(is_absent));
    let has_others = answers.iter().all(|(name, list)| arguments.contains_key(name) || may_be_absent(list));
    has_required && values && has_others
}

fn is_absent(answer: &Value) -> bool {
    answer == ""
}

/// Checks the type and the value of an argument.
fn is_possible(property: &Value, value: &Value, answers: &[Value]) -> bool {
    let name = property["type"].as_str().unwrap_or_default();
    let Some(expected) = python_type(name) else { return false };
    let nested = matches!(name, "array" | "tuple").then(|| property["items"]["type"].as_str()).flatten();
    let nested = nested.and_then(python_type);
    // Python converts an integer to a float.
    let converted = match (name, value.as_i64()) {
        ("float", Some(integer)) => Value::from(integer as f64),
        _ => value.clone(),
    };
    match (usage(&converted, answers, expected, nested), expected) {
        (None, _) => false,
        (Some(ValueUsage::Literal), PythonType::Dict) => {
            answers.iter().any(|answer| is_dictionary(&converted, answer))
        }
        (Some(ValueUsage::Literal), PythonType::List) if nested == Some(PythonType::Dict) => {
            answers.iter().any(|answer| are_dictionaries(&converted, answer))
        }
        (Some(ValueUsage::Literal), PythonType::Str) => {
            answers.iter().any(|answer| answer.is_string() && plain(answer) == plain(&converted))
        }
        (Some(ValueUsage::Literal), PythonType::List) => answers
            .iter()
            .any(|answer| answer.is_array() && equal(&plain_items(answer), &plain_items(&converted))),
        (Some(_), _) => answers.iter().any(|answer| equal(answer, &converted)),
    }
}

/// Returns the use of a value whose type fits. Items of lists are checked one level deep.
fn usage(
    value: &Value,
    answers: &[Value],
    expected: PythonType,
    nested: Option<PythonType>,
) -> Option<ValueUsage> {
    let of_answers = answers.iter().find(|answer| !is_absent(answer)).map(type_of);
    let of_value = type_of(value);
    if of_value == expected {
        let usage = if of_answers.is_none_or(|found| found == expected) {
            ValueUsage::Literal
        } else {
            ValueUsage::Variable
        };
        let Some(nested) = nested else { return Some(usage) };
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let is_typed = |answer: &Value| match answer.as_array() {
            Some(answer) => items.iter().all(|item| self::usage(item, answer, nested, None).is_some()),
            None => true,
        };
        return answers.iter().any(is_typed).then_some(usage);
    }
    (of_answers == Some(of_value)).then_some(ValueUsage::Variable)
}

/// Checks a dictionary against an answer, which has the possible values of each key.
fn is_dictionary(value: &Value, answer: &Value) -> bool {
    let (Some(value), Some(answer)) = (value.as_object(), answer.as_object()) else { return false };
    let is_value = |(key, value): (&String, &Value)| {
        let possible = answer.get(key).and_then(Value::as_array);
        possible.is_some_and(|possible| possible.iter().any(|one| equal(&plain(one), &plain(value))))
    };
    let may_be_absent = |list: &Value| list.as_array().is_some_and(|list| list.iter().any(is_absent));
    value.iter().all(is_value)
        && answer.iter().all(|(key, list)| value.contains_key(key) || may_be_absent(list))
}

fn are_dictionaries(value: &Value, answer: &Value) -> bool {
    match (value.as_array(), answer.as_array()) {
        (Some(value), Some(answer)) if value.len() == answer.len() => {
            value.iter().zip(answer).all(|(value, answer)| is_dictionary(value, answer))
        }
        _ => false,
    }
}

/// Returns a text in lower case without spaces and some punctuation. Other values are returned unchanged.
fn plain(value: &Value) -> Value {
    let Some(text) = value.as_str() else { return value.clone() };
    let kept = text.chars().filter(|c| !" ,./-_*^".contains(*c));
    Value::from(kept.collect::<String>().to_lowercase().replace('\'', "\""))
}

fn plain_items(value: &Value) -> Value {
    value.as_array().map_or_else(|| value.clone(), |items| items.iter().map(plain).collect())
}

/// Returns whether values are equal in Python, where 1 is 1.0 and True.
fn equal(a: &Value, b: &Value) -> bool {
    let number = |value: &Value| value.as_f64().or(value.as_bool().map(f64::from));
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        },
    }
}

fn type_of(value: &Value) -> PythonType {
    match value {
        Value::Null => PythonType::NoneType,
        Value::Bool(_) => PythonType::Bool,
        Value::Number(number) if number.is_f64() => PythonType::Float,
        Value::Number(_) => PythonType::Int,
        Value::String(_) => PythonType::Str,
        Value::Array(_) => PythonType::List,
        Value::Object(_) => PythonType::Dict,
    }
}

/// Returns the Python type for a type name in the functions.
fn python_type(name: &str) -> Option<PythonType> {
    Some(match name {
        "string" | "any" => PythonType::Str,
        "integer" => PythonType::Int,
        "float" => PythonType::Float,
        "boolean" => PythonType::Bool,
        "array" | "tuple" => PythonType::List,
        "dict" => PythonType::Dict,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(property: Value, value: Value, answers: Value, expect: bool) {
        assert_eq!(is_possible(&property, &value, answers.as_array().unwrap()), expect, "{value} {answers}");
    }

    #[test]
    fn values_are_compared_as_the_leaderboard_does() {
        let of = |name: &str| json!({"type": name});
        check(of("integer"), json!(10), json!([10]), true);
        check(of("integer"), json!(10.0), json!([10]), false);
        check(of("integer"), json!("x"), json!([10, "x"]), false);
        check(of("float"), json!(3), json!([3.0]), true);
        check(of("float"), json!(3), json!([3]), true);
        check(of("boolean"), json!(true), json!([true]), true);
        check(of("boolean"), json!("true"), json!([true]), false);
        check(of("string"), json!("April 1, 2024"), json!(["april 1 2024"]), true);
        check(of("string"), json!("May"), json!(["april"]), false);
        // The value is a variable of the answers' type.
        check(of("integer"), json!("x"), json!(["x", ""]), true);
        check(of("integer"), json!("X"), json!(["x"]), false);
        let list = |item: &str| json!({"type": "array", "items": {"type": item}});
        check(list("string"), json!(["New York", "b"]), json!([["new-york", "B"]]), true);
        check(list("string"), json!(["b", "New York"]), json!([["new york", "b"]]), false);
        check(list("integer"), json!([1, 2]), json!([[1, 2]]), true);
        check(list("integer"), json!([1, "2"]), json!([[1, 2]]), false);
        let answer = json!([{"a": [1], "b": ["x", ""]}]);
        check(of("dict"), json!({"a": 1}), answer.clone(), true);
        check(of("dict"), json!({"a": 1, "b": "X"}), answer.clone(), true);
        check(of("dict"), json!({"b": "x"}), answer.clone(), false);
        check(of("dict"), json!({"a": 1, "c": 1}), answer, false);
        check(list("dict"), json!([{"a": 1}]), json!([[{"a": [1]}]]), true);
        check(list("dict"), json!([{"a": 1}, {"a": 1}]), json!([[{"a": [1]}]]), false);
    }

    #[test]
    fn calls_are_right_in_any_order() {
        let parameters = json!({
            "type": "dict",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a"],
        });
        let function = json!({"name": "f", "description": "", "parameters": parameters});
        let answers = json!([{"f": {"a": [1], "b": ["x", ""]}}, {"f": {"a": [2], "b": ["y"]}}]);
        let question = Question {
            id: "q".to_owned(),
            messages: json!([]),
            functions: vec![serde_json::from_value(function).unwrap()],
            answers: serde_json::from_value(answers).unwrap(),
        };
        let call = |name: &str, arguments: Value| Call { name: name.to_owned(), arguments };
        let (first, second) = (call("f", json!({"a": 1})), call("f", json!({"a": 2, "b": "y"})));
        assert!(is_right(&question, &[second.clone(), first.clone()]));
        assert!(!is_right(&question, std::slice::from_ref(&first)));
        assert!(!is_right(&question, &[first.clone(), first.clone()]));
        assert!(!is_right(&question, &[first.clone(), call("f", json!({"a": 2}))]), "b is missing");
        assert!(!is_right(&question, &[first.clone(), call("g", json!({"a": 2, "b": "y"}))]));
        assert!(!is_right(&question, &[first, call("f", json!({"a": 2, "b": "y", "c": 1}))]));
    }
}
