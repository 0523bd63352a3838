//! Grammar rules of the values of parameters. Strings are plain text, other values are JSON.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::END_PARAMETER;
use crate::{
    exact_json::ExactPart,
    grammar::{GrammarError, json_rule},
    tools::{
        arguments::allows,
        lark::quoted,
        schema::{ValueKinds, flattened},
        text_form::{FREE, TextForm},
        write::part_text,
    },
};

/// Reason why a value cannot be guaranteed.
pub(super) enum ValueError {
    Keyword(String),
    Grammar(GrammarError),
}

/// Returns the rule of a parameter's value and of the end of its tag. Strings are plain text, other values are JSON.
pub(super) fn value_rule(rule: &str, schema: &Value) -> Result<String, ValueError> {
    let mut names = Vec::new();
    let mut rules = String::new();
    let alternatives = alternatives(schema, schema).map_err(ValueError::Keyword)?;
    let has_text = alternatives.iter().any(|form| matches!(form, ValueForm::Text(_)));

    for (at, alternative) in alternatives.iter().enumerate() {
        let name = format!("{rule}_{at}");
        match alternative {
            // Any other value is a text too.
            ValueForm::Text(form) if form.is_any() => {
                return Ok(format!("{rule}_value: text_value\n"));
            }
            ValueForm::Text(form) => rules.push_str(&text_rule(&name, form)),
            ValueForm::Listed(texts) => {
                let texts: Vec<String> =
                    texts.iter().map(|text| quoted(&format!("{text}{END_PARAMETER}"))).collect();
                rules.push_str(&format!("{name}: {}\n", texts.join(" | ")));
            }
            // The lexer cannot distinguish the beginning of other JSON from text.
            ValueForm::Json(schema) if has_text => match plain_value(schema) {
                Some(value) => rules.push_str(&format!("{name}: /{value}\\n<\\/parameter>/\n")),
                None => continue,
            },
            ValueForm::Json(schema) => {
                let json = json_rule(schema).map_err(ValueError::Grammar)?;
                let end = quoted(END_PARAMETER);
                rules.push_str(&format!("{name}: {name}_json {end}\n{name}_json: {json}\n"));
            }
        }
        names.push(name);
    }
    Ok(format!("{rule}_value: {}\n{rules}", names.join(" | ")))
}

/// Form of a parameter's value.
enum ValueForm {
    /// A string, as plain text.
    Text(TextForm),
    /// One of several texts, which are strings or JSON.
    Listed(Vec<String>),
    /// JSON of another type, under a schema.
    Json(Value),
}

/// Maximum number of forms of a value.
const MAX_FORMS: usize = 64;

/// Returns the forms of the values that a schema allows.
///
/// # Errors
/// The name of a keyword that a plain text cannot follow.
fn alternatives(schema: &Value, root: &Value) -> Result<Vec<ValueForm>, String> {
    let mut fields = flattened(schema, root)?;
    let listed = fields.get("enum").and_then(Value::as_array).cloned();
    if let Some(values) = listed.or(fields.get("const").map(|value| vec![value.clone()])) {
        let values = values.iter().filter(|value| allows(schema, value));
        let texts: Vec<String> = values
            .map(|value| value.as_str().map_or_else(|| part_text(ExactPart::plain(value)), str::to_owned))
            .collect();
        return if texts.is_empty() { Err("enum".to_owned()) } else { Ok(vec![ValueForm::Listed(texts)]) };
    }
    for keyword in ["anyOf", "oneOf"] {
        let Some(Value::Array(all)) = fields.get(keyword).cloned() else { continue };
        fields.shift_remove(keyword);
        let mut forms = Vec::new();
        for one in all {
            let both = json!({"allOf": [one, fields]});
            forms.extend(alternatives(&both, root)?);
        }
        let is_joined = forms.len() <= MAX_FORMS && (keyword == "anyOf" || are_exclusive(&forms));
        return if is_joined { Ok(forms) } else { Err(keyword.to_owned()) };
    }
    let schema = Value::Object(fields.clone());
    if ValueKinds::of(&schema) == ValueKinds::Others {
        return Ok(vec![ValueForm::Json(schema)]);
    }

    let kinds = fields.get("type").cloned();
    let others = match &kinds {
        Some(Value::Array(names)) => names.iter().filter(|name| *name != "string").cloned().collect(),
        _ => Vec::new(),
    };
    let text = TextForm::of(&fields, kinds.is_some())?;
    let mut forms = vec![ValueForm::Text(text)];
    if !others.is_empty() {
        for keyword in ["pattern", "format", "minLength", "maxLength"] {
            fields.shift_remove(keyword);
        }
        fields.insert("type".to_owned(), others.into());
        forms.push(ValueForm::Json(fields.into()));
    }
    Ok(forms)
}

/// Returns a regular expression of the values of a schema that only states types without parts.
fn plain_value(schema: &Value) -> Option<String> {
    let is_plain = schema.as_object()?.keys().all(|keyword| FREE.contains(&keyword.as_str()));
    let names = match &schema["type"] {
        Value::Array(names) => names.as_slice(),
        name => std::slice::from_ref(name),
    };
    let expressions = names.iter().map(|name| type_expression(name.as_str()?));
    let expressions: Vec<&str> = expressions.collect::<Option<_>>()?;
    is_plain.then(|| format!("({})", expressions.join("|")))
}

/// Returns a regular expression of the values of a type, if they have no parts.
fn type_expression(name: &str) -> Option<&'static str> {
    match name {
        "null" => Some("null"),
        "boolean" => Some("true|false"),
        "integer" => Some("-?(0|[1-9][0-9]{0,17})"),
        "number" => Some("-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?"),
        _ => None,
    }
}

/// Returns true if no value has two of these forms.
fn are_exclusive(forms: &[ValueForm]) -> bool {
    let mut known = HashSet::new();
    let has_text = forms.iter().any(|form| matches!(form, ValueForm::Text(_)));
    forms.iter().all(|form| match form {
        ValueForm::Text(_) => known.insert("string".to_owned()),
        ValueForm::Listed(texts) => !has_text && texts.iter().all(|text| known.insert(format!("={text}"))),
        ValueForm::Json(schema) => match schema["type"].as_str() {
            Some("integer") => known.insert("number".to_owned()),
            Some(name) => known.insert(name.to_owned()),
            None => false,
        },
    })
}

/// Returns the rule of a text with the end of its tag, which is not part of the text.
fn text_rule(rule: &str, form: &TextForm) -> String {
    let terminal = rule.to_uppercase();
    let restrictions = form.restrictions();
    format!(
        "{rule}[lazy]: {terminal} \"\\n</parameter>\"\n\
         {terminal}: {restrictions} & ~/(\\n|.)*\\n<\\/parameter>(\\n|.)*/\n"
    )
}
