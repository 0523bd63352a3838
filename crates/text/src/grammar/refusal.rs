//! Errors of the grammar compiler in the terms of a request: the keyword of a schema or the regular expression that was
//! refused, and the reason.

use std::borrow::Cow;

use llguidance::{derivre::RegexBuilder, regex_to_lark};
use serde_json::Value;

use super::{
    Grammar, GrammarError,
    lark_error::lark_reason,
    message::{cleaned, expression_reason, shortened},
};

/// Classes of characters that are ASCII in a JSON schema: digits and words.
pub(super) const SCHEMA_CLASSES: &str = "dw";

/// Messages of the compiler about one keyword, each with the keyword and the reason for the client.
const KEYWORDS: [(&str, &str, &str); 7] = [
    (
        "oneOf constraints are not supported",
        r#""oneOf""#,
        r#"more than one of its schemas may be valid for a value; use "anyOf""#,
    ),
    (
        "Regex is empty",
        r#""pattern" or "format""#,
        "no text follows it and has the length that the schema requires",
    ),
    (
        "Unable to determine if regex is empty",
        r#""pattern" or "format""#,
        "it is too complex together with the length that the schema requires",
    ),
    ("are not disjoint", r#""patternProperties""#, "more than one of its patterns may match a name"),
    ("are disjoint", r#""patternProperties""#, "its patterns are too complex together"),
    (
        "circular references with sibling keys",
        r#""$ref""#,
        "it is to a schema that contains it, and has other keywords beside it; put them into that schema",
    ),
    (
        "min/maxProperties only supported",
        r#""minProperties" or "maxProperties""#,
        "expected an object whose listed properties are all required",
    ),
];

/// Messages of the compiler about the size of a grammar.
const SIZES: [&str; 9] = [
    "fuel exhausted",
    "too big (limit",
    "schema too large",
    "stack level exceeded",
    "too many states",
    "too many expressions",
    "Too many items",
    "Current row has",
    "class too large",
];

/// Returns the error for a message of the compiler about a grammar. `message` is the result of [`cleaned`].
pub(super) fn refusal(grammar: &Grammar, message: &str) -> GrammarError {
    if let Some((_, keys)) = message.split_once("Unimplemented keys: [") {
        let keywords = keys.split(']').next().unwrap_or(keys).to_owned();
        return GrammarError::UnsupportedKeywords { keywords };
    }
    if let Some((what, reason)) = wrong_value(grammar, message) {
        return GrammarError::unsupported(what, reason);
    }
    if SIZES.iter().any(|part| message.contains(part)) {
        return GrammarError::unusable("it is too large or too complex; use fewer and simpler parts");
    }
    if let Some((_, reason)) = message.rsplit_once("Unsatisfiable schema: ") {
        let reason = reason.split(" while processing ").next().unwrap_or(reason);
        return GrammarError::unusable(format!("the schema allows no value: {}", without_values(reason)));
    }
    // The position is that in the grammar of a call, which the client has not written.
    let of_schema = message.rsplit_once("failed to compile JSON schema: ").map(|(_, reason)| reason);
    GrammarError::unusable(match (of_schema, grammar) {
        (Some(reason), _) => reason.to_owned(),
        (None, Grammar::Lark(source)) => lark_reason(source, message),
        (None, _) => message.to_owned(),
    })
}

/// Returns the reason why a schema allows no value, in the terms of JSON Schema. Others name keywords and their values:
/// `minLength (3) is greater than maxLength (2)`.
fn without_values(reason: &str) -> Cow<'_, str> {
    let part = |before, after| reason.strip_prefix(before)?.strip_suffix(after);
    if let Some(name) = part("required property '", "' is unsatisfiable") {
        return format!("the required property {name:?} allows none").into();
    }
    if let Some(constant) = part("Constant ", " doesn't match length constraints") {
        return format!("the constant {constant} has another length than the schema requires").into();
    }
    if let Some((item, least)) = reason.split_once(" is unsatisfiable but minItems is ") {
        return format!("{item} allows none, and minItems is {least}").into();
    }
    Cow::Borrowed(match reason {
        "schema is false" => "the schema `false` allows none",
        "incompatible types" => "its parts require values of different types",
        "incompatible boolean values" => "its parts require different booleans",
        "All options in anyOf are unsatisfiable" => "none of the schemas of anyOf allows one",
        "required > maxProperties" => "more properties are required than maxProperties allows",
        "minProperties > maxProperties" => "minProperties is greater than maxProperties",
        other => other,
    })
}

/// Returns the part of a grammar that cannot be enforced, and the reason.
fn wrong_value(grammar: &Grammar, message: &str) -> Option<(String, String)> {
    if message.contains("regex") {
        let of_expression = match grammar {
            Grammar::JsonSchema(schema) => wrong_pattern(schema),
            Grammar::Regex(source) => expression_error(source, "")
                .map(|reason| (format!("the regular expression {}", quoted(source)), reason)),
            Grammar::Lark(_) => None,
        };
        if of_expression.is_some() {
            return of_expression;
        }
    }
    if let Some((_, format)) = message.split_once("Unknown format: ") {
        let format = format.split(char::is_whitespace).next().unwrap_or(format);
        return Some((format!(r#"the schema's "format": {format:?}"#), "it is unknown".to_owned()));
    }
    let known = KEYWORDS.into_iter().find(|(part, ..)| message.contains(part));
    known.map(|(_, keyword, reason)| (format!("the schema's {keyword}"), reason.to_owned()))
}

/// Returns the first regular expression of a schema that cannot be followed, with its keyword, and the reason.
fn wrong_pattern(schema: &Value) -> Option<(String, String)> {
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Array(items) => return items.iter().find_map(wrong_pattern),
        _ => return None,
    };
    let own = fields.get("pattern").and_then(Value::as_str).map(|pattern| ("pattern", pattern));
    let of_names = fields.get("patternProperties").and_then(Value::as_object).into_iter();
    let of_names =
        of_names.flat_map(|schemas| schemas.keys()).map(|name| ("patternProperties", name.as_str()));
    let wrong = own.into_iter().chain(of_names).find_map(|(keyword, pattern)| {
        let reason = expression_error(pattern, SCHEMA_CLASSES)?;
        Some((format!("the schema's {keyword:?}: {}", quoted(pattern)), reason))
    });
    wrong.or_else(|| fields.values().find_map(wrong_pattern))
}

/// Returns the reason why a regular expression cannot be parsed.
pub(super) fn expression_error(expression: &str, ascii_classes: &str) -> Option<String> {
    let expression = regex_to_lark(expression, ascii_classes);
    let error = RegexBuilder::new().mk_regex_for_serach(&expression).err()?.to_string();
    // The lines before show the expression and the position of the error.
    let last = error.lines().next_back().unwrap_or_default();
    Some(cleaned(expression_reason(last)))
}

fn quoted(expression: &str) -> String {
    format!("{:?}", shortened(expression))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_compiler_become_reasons() {
        let grammar = Grammar::json_object();
        let check = |message: &str, expect: &str| assert_eq!(refusal(&grammar, message).to_string(), expect);
        let too_large =
            "the grammar is not usable: it is too large or too complex; use fewer and simpler parts";
        check("fuel exhausted when checking relevance of lexemes (1000000)", too_large);
        check("grammar size (number of symbols) too big (limit for this grammar: 500000)", too_large);
        check(
            "failed to compile JSON schema: Unsatisfiable schema: minimum (3) is greater than maximum (2)",
            "the grammar is not usable: the schema allows no value: minimum (3) is greater than maximum (2)",
        );
        let no_value = "the grammar is not usable: the schema allows no value: ";
        for (reason, expect) in [
            ("required property 'a' is unsatisfiable", "the required property \"a\" allows none"),
            ("incompatible types", "its parts require values of different types"),
            (
                "Constant \"abc\" doesn't match length constraints",
                "the constant \"abc\" has another length than the schema requires",
            ),
            (
                "prefixItems[0] is unsatisfiable but minItems is 1",
                "prefixItems[0] allows none, and minItems is 1",
            ),
        ] {
            check(&format!("Unsatisfiable schema: {reason}"), &format!("{no_value}{expect}"));
        }
        check(
            "circular references with sibling keys are not supported: #/$defs/a",
            "the schema's \"$ref\" cannot be enforced: it is to a schema that contains it, and has other keywords beside \
             it; put them into that schema",
        );
    }
}
