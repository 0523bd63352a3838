//! Restrictions of strings that are written as plain text, without the escapes of JSON.

use serde_json::{Map, Value};

use crate::grammar::{format_pattern, text_pattern};

/// Keywords that do not restrict a value, or only through their types.
pub(super) const FREE: &[&str] =
    &["type", "description", "title", "default", "examples", "example", "$comment", "$defs", "definitions"];

/// Restrictions of a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TextForm {
    /// Regular expression of the whole text, for a Lark grammar.
    pattern: Option<String>,
    /// That of the format.
    format: Option<String>,
    /// Minimum and maximum number of characters.
    least: u64,
    most: Option<u64>,
}

impl TextForm {
    /// Returns the restrictions of the strings that a schema allows. Without a type, keywords of strings would also apply to
    /// texts that are read as another type.
    ///
    /// # Errors
    /// The name of a keyword that a plain text cannot follow.
    pub(super) fn of(fields: &Map<String, Value>, has_type: bool) -> Result<Self, String> {
        let mut form = Self::default();
        for (keyword, rule) in fields {
            match (keyword.as_str(), rule.as_u64()) {
                ("minLength", Some(least)) if has_type => form.least = least,
                ("maxLength", Some(most)) if has_type => form.most = Some(most),
                ("pattern", _) if has_type => {
                    let pattern = rule.as_str().and_then(text_pattern);
                    form.pattern = Some(pattern.ok_or_else(|| keyword.clone())?);
                }
                // Formats without a pattern are annotations.
                ("format", _) => {
                    form.format =
                        rule.as_str().and_then(format_pattern).and_then(|pattern| text_pattern(&pattern));
                }
                (keyword, _) if FREE.contains(&keyword) || is_of_others(keyword) && has_type => {}
                _ => return Err(keyword.clone()),
            }
        }
        Ok(form)
    }

    /// Returns true if every text is allowed.
    pub(super) fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the restrictions as the right side of a terminal of a Lark grammar.
    pub(super) fn restrictions(&self) -> String {
        let most = self.most.map_or_else(String::new, |most| most.to_string());
        let mut restrictions = format!("/(\\n|.){{{},{most}}}/", self.least);
        for pattern in self.pattern.iter().chain(&self.format) {
            restrictions.push_str(&format!(" & /{pattern}/"));
        }
        restrictions
    }
}

/// Returns true if a keyword does not apply to strings.
fn is_of_others(keyword: &str) -> bool {
    [
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "properties",
        "required",
        "additionalProperties",
    ]
    .contains(&keyword)
}
