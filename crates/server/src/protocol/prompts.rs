//! The forms of `prompt` and `input`: a text, a list of tokens, or a list of either.
//!
//! Lists are read element by element. Serde's untagged enums would first store every element as a generic value, which
//! takes a hundred times the memory of the tokens.

use std::{borrow::Cow, fmt};

use narthex_gateway::request::Prompt;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::json;

/// At most `MAX` texts and token lists.
#[derive(Debug)]
pub(crate) struct Prompts<const MAX: usize>(pub(crate) Vec<Prompt>);

impl<'de, const MAX: usize> Deserialize<'de> for Prompts<MAX> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(PromptsVisitor)
    }
}

impl<const MAX: usize> JsonSchema for Prompts<MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("Prompts{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let tokens =
            json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": u32::MAX}});
        let element = json!({"anyOf": [{"type": "string"}, tokens]});
        json_schema!({
            "anyOf": [{"type": "string"}, tokens, {"type": "array", "items": element, "maxItems": MAX}],
        })
    }
}

struct PromptsVisitor<const MAX: usize>;

impl<'de, const MAX: usize> Visitor<'de> for PromptsVisitor<MAX> {
    type Value = Prompts<MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list of tokens, or a list of either")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut tokens = Vec::new();
        let mut prompts = Vec::new();
        while let Some(element) = elements.next_element()? {
            match element {
                Element::Token(token) if prompts.is_empty() => tokens.push(token),
                Element::Prompt(prompt) if tokens.is_empty() => prompts.push(prompt),
                Element::Token(_) | Element::Prompt(_) => {
                    return Err(de::Error::custom(
                        "expected tokens, or texts and lists of tokens, found both",
                    ));
                }
            }
            if prompts.len() > MAX {
                let message = format!("expected at most {MAX} texts or lists of tokens, found more");
                return Err(de::Error::custom(message));
            }
        }
        if !tokens.is_empty() {
            prompts.push(Prompt::Tokens(tokens));
        }
        Ok(Prompts(prompts))
    }
}

/// An element of a list.
enum Element {
    Token(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token, a text or a list of tokens")
    }

    fn visit_u64<E: de::Error>(self, token: u64) -> Result<Element, E> {
        let read = u32::try_from(token).map(Element::Token);
        read.map_err(|_| E::invalid_value(de::Unexpected::Unsigned(token), &self))
    }

    fn visit_str<E>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Prompt(Prompt::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Element, A::Error> {
        let mut tokens = Vec::new();
        while let Some(token) = elements.next_element()? {
            tokens.push(token);
        }
        Ok(Element::Prompt(Prompt::Tokens(tokens)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_four_forms() {
        let text = |text: &str| Prompt::Text(text.to_owned());
        let check = |json: &str, expect: &[Prompt]| {
            assert_eq!(serde_json::from_str::<Prompts<2>>(json).unwrap().0, expect, "{json}");
        };
        check(r#""a""#, &[text("a")]);
        check("[1, 2]", &[Prompt::Tokens(vec![1, 2])]);
        check(r#"["a", "b"]"#, &[text("a"), text("b")]);
        check("[[1], []]", &[Prompt::Tokens(vec![1]), Prompt::Tokens(Vec::new())]);
        check("[]", &[]);
    }

    #[test]
    fn other_forms_and_more_elements_are_refused() {
        let check = |json: &str, expect: &str| {
            let error = serde_json::from_str::<Prompts<2>>(json).unwrap_err().to_string();
            assert!(error.contains(expect), "{json}: {error}");
        };
        check("{}", "expected a text, a list of tokens, or a list of either");
        check("[-1]", "expected a token, a text or a list of tokens");
        check("[4294967296]", "4294967296");
        check("[[[1]]]", "expected u32");
        check(r#"[1, "a"]"#, "found both");
        check(r#"["a", 1]"#, "found both");
        check("[[1], [2], [3]]", "expected at most 2 texts or lists of tokens");
    }
}
