//! Grammar rules of Gemma 4's arguments.

use serde_json::{Map, Value, json};

use super::{QUOTE, notation};
use crate::{
    exact_json::ExactPart,
    grammar::{GrammarError, json_rule},
    template::Content,
    tools::{
        arguments::allows,
        lark::{Markers, quoted, regex},
        schema::{flattened, parameters},
        text_form::{FREE, TextForm},
    },
};

/// Maximum depth of values in a schema.
const MAX_DEPTH: usize = 16;

/// Keywords of which a schema needs none to allow values of every type.
const TYPED: [&str; 4] = ["properties", "items", "minimum", "maximum"];

/// Rules of any value: `any`, and those that it uses.
const ANY: &str = "any: any_text | any_list | any_object | ANY_WORD\n\
    any_list: \"[\" (any (\",\" any)*)? \"]\"\nany_object: \"{\" (any_field (\",\" any_field)*)? \"}\"\n\
    any_field: ANY_KEY any\nANY_KEY: /[^:,{}\\[\\]\\n<]+:/\n\
    ANY_WORD: /true|false|null|-?(0|[1-9][0-9]*)(\\.[0-9]+)?/\n";

/// Rules of values under construction.
pub(super) struct ValueRules {
    pub(super) rules: String,
    /// Item of the marker around strings.
    quote: String,
    /// True if the marker is a token, which is no part of a text.
    is_token: bool,
}

fn unsupported(keywords: &str) -> GrammarError {
    GrammarError::UnsupportedKeywords { keywords: keywords.to_owned() }
}

impl ValueRules {
    /// Creates the rules, with those of any value.
    pub(super) fn new(markers: &Markers<'_>) -> Self {
        let is_token = markers.token(QUOTE).is_some();
        let mut rules = Self { rules: ANY.to_owned(), quote: markers.item(QUOTE), is_token };
        rules.text("any_text", &TextForm::default());
        rules
    }

    /// Adds the rule of the fields of an object, without the brackets around them. They are sorted, as templates write them.
    pub(super) fn fields(&mut self, rule: &str, schema: &Value, depth: usize) -> Result<(), GrammarError> {
        let mut named = parameters(schema).map_err(|keyword| unsupported(&keyword))?;
        named.sort_by_key(|parameter| parameter.name.to_lowercase());
        // `first` rules are used before the first field, `next` rules after one.
        self.rules.push_str(&format!("{rule}: {rule}_first_0\n"));
        for (at, parameter) in named.iter().enumerate() {
            let name = &parameter.name;
            if name.is_empty() || name.contains([':', ',', '{', '}', '[', ']', '<', '\n']) {
                return Err(unsupported(&format!("properties.{name}")));
            }
            let value = format!("{rule}_{at}");
            self.value(&value, &parameter.schema, depth)?;
            let key = format!("{name}:");
            for (place, head) in [("first", quoted(&key)), ("next", quoted(&format!(",{key}")))] {
                let left_out = match parameter.is_required {
                    true => String::new(),
                    false => format!(" | {rule}_{place}_{}", at + 1),
                };
                let rest = format!("{head} {value} {rule}_next_{}{left_out}", at + 1);
                self.rules.push_str(&format!("{rule}_{place}_{at}: {rest}\n"));
            }
        }
        let end = named.len();
        self.rules.push_str(&format!("{rule}_first_{end}: \"\"\n{rule}_next_{end}: \"\"\n"));
        Ok(())
    }

    /// Adds the rule of the values that a schema allows.
    fn value(&mut self, rule: &str, schema: &Value, depth: usize) -> Result<(), GrammarError> {
        if depth == MAX_DEPTH {
            return Err(unsupported("$ref"));
        }
        let mut fields = flattened(schema, schema).map_err(|keyword| unsupported(&keyword))?;
        let listed = fields.get("enum").and_then(Value::as_array).cloned();
        if let Some(values) = listed.or(fields.get("const").map(|value| vec![value.clone()])) {
            return self.listed(rule, values.iter().filter(|value| allows(schema, value)));
        }

        let kinds: Vec<Value> = match fields.get("type") {
            Some(Value::Array(names)) => names.clone(),
            Some(name) => vec![name.clone()],
            None => match fields.shift_remove("anyOf") {
                Some(Value::Array(all)) => return self.one_of(rule, all, &fields, depth),
                _ if fields.contains_key("oneOf") => return Err(unsupported("oneOf")),
                _ if TYPED.iter().all(|keyword| !fields.contains_key(*keyword)) => {
                    self.rules.push_str(&format!("{rule}: any\n"));
                    return Ok(());
                }
                _ if fields.contains_key("properties") => vec!["object".into()],
                _ => return Err(unsupported("type")),
            },
        };
        if kinds.len() > 1 {
            let all = kinds.into_iter().map(|kind| json!({ "type": kind })).collect();
            fields.shift_remove("type");
            return self.one_of(rule, all, &fields, depth);
        }
        self.typed(rule, kinds.first().and_then(Value::as_str).unwrap_or(""), &fields, depth)
    }

    fn typed(
        &mut self,
        rule: &str,
        kind: &str,
        fields: &Map<String, Value>,
        depth: usize,
    ) -> Result<(), GrammarError> {
        let schema = Value::Object(fields.clone());
        match kind {
            "string" => {
                let form = TextForm::of(fields, true).map_err(|keyword| unsupported(&keyword))?;
                self.text(rule, &form);
            }
            "array" => {
                if let Some(keyword) = ["prefixItems", "uniqueItems", "contains"]
                    .into_iter()
                    .find(|keyword| fields.get(*keyword).is_some_and(|rule| *rule != false))
                {
                    return Err(unsupported(keyword));
                }
                let item = format!("{rule}_item");
                let items = fields.get("items").cloned().unwrap_or_else(|| json!({}));
                self.value(&item, &with_definitions(items, fields), depth + 1)?;
                let [least, most] =
                    ["minItems", "maxItems"].map(|key| fields.get(key).and_then(Value::as_u64));
                let list = match (least.unwrap_or(0), most) {
                    (_, Some(0)) => "\"[]\"".to_owned(),
                    (least, most) => {
                        let most = most.map_or_else(String::new, |most| (most - 1).to_string());
                        let more = format!("{item} (\",\" {item}){{{},{most}}}", least.saturating_sub(1));
                        let optional = if least == 0 { "?" } else { "" };
                        format!("\"[\" ({more}){optional} \"]\"")
                    }
                };
                self.rules.push_str(&format!("{rule}: {list}\n"));
            }
            "object" if fields.contains_key("properties") => {
                self.rules.push_str(&format!("{rule}: \"{{\" {rule}_fields \"}}\"\n"));
                self.fields(&format!("{rule}_fields"), &schema, depth + 1)?;
            }
            "object" => self.map(rule, fields, depth)?,
            _ => self.rules.push_str(&format!("{rule}: {}\n", json_rule(&schema)?)),
        }
        Ok(())
    }

    /// Adds the rule of an object without named fields.
    fn map(&mut self, rule: &str, fields: &Map<String, Value>, depth: usize) -> Result<(), GrammarError> {
        let known =
            |keyword: &&String| FREE.contains(&keyword.as_str()) || *keyword == "additionalProperties";
        if let Some(keyword) = fields.keys().find(|keyword| !known(keyword)) {
            return Err(unsupported(keyword));
        }
        match fields.get("additionalProperties") {
            None | Some(Value::Bool(true)) => self.rules.push_str(&format!("{rule}: any_object\n")),
            Some(Value::Bool(false)) => self.rules.push_str(&format!("{rule}: \"{{}}\"\n")),
            Some(schema) => {
                let value = format!("{rule}_value");
                self.value(&value, &with_definitions(schema.clone(), fields), depth + 1)?;
                let field = format!("ANY_KEY {value}");
                self.rules.push_str(&format!("{rule}: \"{{\" ({field} (\",\" {field})*)? \"}}\"\n"));
            }
        }
        Ok(())
    }

    /// Adds the rule of the values that one of several schemas allows beside `rest`.
    fn one_of(
        &mut self,
        rule: &str,
        all: Vec<Value>,
        rest: &Map<String, Value>,
        depth: usize,
    ) -> Result<(), GrammarError> {
        let mut names = Vec::new();
        for (at, one) in all.into_iter().enumerate() {
            let name = format!("{rule}_or_{at}");
            let mut own = rest.clone();
            // Keywords of strings do not apply to other types.
            if one["type"].is_string() && one["type"] != "string" {
                ["pattern", "format", "minLength", "maxLength"].iter().for_each(|key| {
                    own.shift_remove(*key);
                });
            }
            let both = with_definitions(json!({"allOf": [one, own]}), rest);
            self.value(&name, &both, depth + 1)?;
            names.push(name);
        }
        self.rules.push_str(&format!("{rule}: {}\n", names.join(" | ")));
        Ok(())
    }

    /// Adds the rule of several values.
    fn listed<'a>(
        &mut self,
        rule: &str,
        values: impl Iterator<Item = &'a Value>,
    ) -> Result<(), GrammarError> {
        let values: Vec<String> = values.map(|value| self.constant(value)).collect();
        if values.is_empty() {
            return Err(unsupported("enum"));
        }
        self.rules.push_str(&format!("{rule}: {}\n", values.join(" | ")));
        Ok(())
    }

    /// Returns the items of one value.
    fn constant(&self, value: &Value) -> String {
        let mut content = Content::default();
        notation::write(ExactPart::plain(value), &mut content);
        let text = content.text();
        if !self.is_token {
            return quoted(&text);
        }
        let parts: Vec<String> = text
            .split(QUOTE)
            .map(|part| if part.is_empty() { String::new() } else { quoted(part) })
            .collect();
        parts.join(&format!(" {} ", self.quote))
    }

    /// Adds the rule of a string between its markers.
    fn text(&mut self, rule: &str, form: &TextForm) {
        let terminal = rule.to_uppercase();
        let restrictions = form.restrictions();
        let quote = &self.quote;
        let rules = if self.is_token {
            format!("{rule}: {quote} {terminal}_TEXT {quote}\n{terminal}_TEXT: {restrictions}\n")
        } else {
            let marker = regex(QUOTE);
            format!(
                "{rule}: {quote} {rule}_end\n{rule}_end[lazy]: {terminal}_TEXT {quote}\n\
                 {terminal}_TEXT: {restrictions} & ~/(\\n|.)*{marker}(\\n|.)*/\n"
            )
        };
        self.rules.push_str(&rules);
    }
}

/// Returns a schema with the definitions to which its parts may refer.
fn with_definitions(mut schema: Value, root: &Map<String, Value>) -> Value {
    for keyword in ["$defs", "definitions"] {
        if let (Some(fields), Some(definitions)) = (schema.as_object_mut(), root.get(keyword)) {
            fields.entry(keyword).or_insert_with(|| definitions.clone());
        }
    }
    schema
}
