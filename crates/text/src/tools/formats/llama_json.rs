//! Calls in JSON of Llama 3.1 to 3.3: the answer is an object with `name` and `parameters`.

use super::{FormatDefinition, FormatOptions};
use crate::tools::{
    json_calls::JsonSyntax,
    lark::{FormatRules, repeated},
    write::{joined, object},
};

/// Marker that may precede the object.
const OPEN: &str = "<|python_tag|>";
const KEY: &str = "parameters";
const SEPARATOR: &str = "; ";
const SYNTAX: JsonSyntax =
    JsonSyntax { is_bare: true, separator: Some(';'), key: KEY, ..JsonSyntax::marked(&[OPEN], &[]) };

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains(OPEN) || template.contains("Environment: ipython"),
    markers: &[OPEN],
    parser: |context| SYNTAX.parser(context),
    rules: |allowed| {
        let calls = repeated("object", SEPARATOR, allowed.limit);
        let calls = format!("calls: {calls}\nbody: calls\n");
        let rules = SYNTAX.rules(&calls, allowed.functions, allowed.limit)?;
        Ok(FormatRules { head: Some(allowed.markers.item(OPEN)), ..rules })
    },
    write: |calls, message| message.content.push_str(&joined(calls, SEPARATOR, |call| object(call, KEY))),
    options: FormatOptions::BASE,
    #[cfg(test)]
    examples: tests::examples,
};

#[cfg(test)]
mod tests {
    use super::OPEN;
    use crate::tools::examples::{Examples, TemplateExample, WEATHER, complete};

    /// Returns answers after Meta's prompt format of Llama 3.1 for JSON calls, with `<|python_tag|>` as of built-in
    /// tools.
    pub(super) fn examples() -> Examples {
        let call = r#"{"name": "get_weather", "parameters": {"city": "Brno", "days": 2}}"#;
        let transcripts = vec![
            complete(call, WEATHER),
            complete(format!("<|python_tag|>{call}; {call}"), format!("{WEATHER} {WEATHER}")),
            complete(format!("\n{{\"type\": \"function\", {}", &call[1..]), WEATHER),
            complete(r#"{"name": "Ann", "age": 5}"#, r#""{\"name\": \"Ann\", \"age\": 5}""#),
            complete(r#"{"city": "Brno"}"#, r#""{\"city\": \"Brno\"}""#),
            complete(&call[..call.len() - 1], WEATHER),
            complete(format!("{}; {call}", &call[..call.len() - 1]), format!("{WEATHER} {WEATHER}")),
            complete("It is {warm}.", r#""It is {warm}.""#),
        ];
        let templates = vec![TemplateExample::new("llama3.1"), TemplateExample::new("llama3.2")];
        Examples { content_head: OPEN, ..Examples::new(templates, transcripts) }
    }
}
