//! Grammars of answers with tools.

use std::borrow::Cow;

use narthex_spec::ToolFormat;
use narthex_text::{
    grammar::{Grammar, GrammarError},
    tokenizer::Tokenizer,
    tools::{Callable, ContentRule, call_grammar},
};
use serde_json::{Map, Value, json};

use crate::serve::request::{CallLimit, Strictness, Tool, ToolChoice, ToolSettings};

/// Returns the grammar of an answer with these tools, or `None` if any text is allowed. `content` is the grammar of an
/// answer without calls.
pub(in crate::serve) fn answer_grammar(
    settings: &ToolSettings,
    format: ToolFormat,
    tokenizer: &Tokenizer,
    content: Option<&Grammar>,
) -> Result<Option<Grammar>, GrammarError> {
    let callable: Vec<&Tool> = match &settings.choice {
        ToolChoice::None => Vec::new(),
        ToolChoice::Auto | ToolChoice::Required => settings.tools.iter().collect(),
        ToolChoice::Function(name) => settings.tools.iter().filter(|tool| tool.name == *name).collect(),
    };
    if callable.is_empty() {
        return Ok(content.cloned());
    }
    let (beside, limit) = match (&settings.choice, content) {
        (ToolChoice::Auto, None) if !guarantees_calls(settings) => return Ok(None),
        (ToolChoice::Auto, None) => (ContentRule::Text, settings.calls),
        (ToolChoice::Auto, Some(content)) => (ContentRule::Content(content), settings.calls),
        (ToolChoice::Function(_), _) => (ContentRule::Nothing, CallLimit::One),
        (ToolChoice::Required | ToolChoice::None, _) => (ContentRule::Nothing, settings.calls),
    };
    let schemas: Vec<Cow<'_, Value>> =
        callable.iter().map(|tool| enforced_schema(tool)).collect::<Result<_, _>>()?;
    let callable: Vec<Callable<'_>> = callable
        .iter()
        .zip(&schemas)
        .map(|(tool, schema)| Callable { name: &tool.name, parameters: schema })
        .collect();
    call_grammar(tokenizer, format, &callable, limit, beside).map(Some)
}

/// Returns the schema that the arguments of guaranteed calls follow: that of the tool, with the grammar of its text.
///
/// # Errors
/// The grammar of the text has no regular expression.
pub(in crate::serve) fn enforced_schema(tool: &Tool) -> Result<Cow<'_, Value>, GrammarError> {
    let Some(text) = &tool.text else { return Ok(Cow::Borrowed(&tool.parameters)) };
    let mut schema = tool.parameters.clone();
    let property = schema.get_mut("properties").and_then(|properties| properties.get_mut(&text.name));
    if let Some(fields) = property.and_then(Value::as_object_mut) {
        fields.insert("pattern".to_owned(), text.grammar.pattern()?.into());
    }
    Ok(Cow::Owned(schema))
}

/// Returns the settings with open schemas of the tools whose calls need not be valid: the names of their properties, with
/// any values. Returns `None` if the settings require calls, or have no such tools.
pub(in crate::serve) fn with_open_schemas(settings: &ToolSettings) -> Option<ToolSettings> {
    let is_open = |tool: &&mut Tool| tool.strictness == Strictness::BestEffort;
    let mut settings = settings.clone();
    let mut found = false;
    for tool in settings.tools.iter_mut().filter(is_open) {
        let properties = tool.parameters.get("properties").and_then(Value::as_object);
        let names = properties.into_iter().flat_map(Map::keys);
        let properties: Map<String, Value> = names.map(|name| (name.clone(), json!({}))).collect();
        tool.parameters = json!({"type": "object", "properties": properties, "additionalProperties": true});
        found = true;
    }
    (found && settings.choice == ToolChoice::Auto).then_some(settings)
}

/// Returns true if the settings require calls, or require them to be valid.
pub(in crate::serve) fn guarantees_calls(settings: &ToolSettings) -> bool {
    match settings.choice {
        ToolChoice::None => false,
        ToolChoice::Auto => settings.tools.iter().any(|tool| tool.strictness == Strictness::Strict),
        ToolChoice::Required | ToolChoice::Function(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use narthex_text::tokenizer::GgufVocab;

    use super::*;
    use crate::serve::request::TextArgument;

    #[test]
    fn only_calls_that_must_be_valid_restrict_the_answer() {
        let vocab = GgufVocab {
            model: "gpt2".to_owned(),
            pre: Some("smollm".to_owned()),
            tokens: vec!["a".to_owned()],
            ..GgufVocab::default()
        };
        let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
        let object = Grammar::json_object();
        let check = |choice, strictness, content: Option<&Grammar>, expect: &str| {
            let parameters = json!({"type": "object"});
            let tool = Tool { name: "f".to_owned(), description: None, parameters, strictness, text: None };
            let settings = ToolSettings { tools: vec![tool], choice, calls: CallLimit::Any };
            let found = answer_grammar(&settings, ToolFormat::Hermes, &tokenizer, content).unwrap();
            let start = match &found {
                None => "",
                Some(Grammar::Lark(source)) => source.lines().next().unwrap(),
                Some(_) => "content",
            };
            assert_eq!(start, expect, "{settings:?}");
        };
        use Strictness::{BestEffort, Strict};
        check(ToolChoice::None, Strict, None, "");
        check(ToolChoice::None, Strict, Some(&object), "content");
        check(ToolChoice::Auto, BestEffort, None, "");
        check(ToolChoice::Auto, Strict, None, "start: called* TEXT");
        check(ToolChoice::Auto, BestEffort, Some(&object), "start: calls | content");
        for content in [Grammar::Regex("a".to_owned()), Grammar::Lark("start: \"a\"".to_owned())] {
            check(ToolChoice::Auto, BestEffort, Some(&content), "start: calls | content");
        }
        check(ToolChoice::Required, BestEffort, None, "start: calls");
        check(ToolChoice::Function("f".to_owned()), BestEffort, Some(&object), "start: calls");
    }

    #[test]
    fn schemas_of_tools_without_a_guarantee_can_be_open() {
        let parameters = json!({
            "type": "object",
            "properties": {"a": {"type": "array", "uniqueItems": true}},
            "required": ["a"],
        });
        let tool = |strictness| {
            let (name, parameters) = ("f".to_owned(), parameters.clone());
            Tool { name, description: None, parameters, strictness, text: None }
        };
        let open = |strictnesses: &[Strictness], choice| {
            let tools = strictnesses.iter().map(|&strictness| tool(strictness)).collect();
            with_open_schemas(&ToolSettings { tools, choice, calls: CallLimit::Any })
        };
        let found = open(&[Strictness::Strict, Strictness::BestEffort], ToolChoice::Auto).unwrap();
        assert_eq!(found.tools[0].parameters, parameters);
        let open_schema = json!({"type": "object", "properties": {"a": {}}, "additionalProperties": true});
        assert_eq!(found.tools[1].parameters, open_schema);
        assert!(open(&[Strictness::Strict], ToolChoice::Auto).is_none());
        assert!(open(&[Strictness::BestEffort], ToolChoice::Required).is_none());
    }

    #[test]
    fn the_grammar_of_a_text_is_part_of_its_schema() {
        let text = |grammar| Some(TextArgument { name: "input".to_owned(), grammar });
        let parameters = json!({"type": "object", "properties": {"input": {"type": "string"}}});
        let tool = |text| {
            let (name, parameters) = ("f".to_owned(), parameters.clone());
            Tool { name, description: None, parameters, strictness: Strictness::Strict, text }
        };
        assert_eq!(*enforced_schema(&tool(None)).unwrap(), parameters);
        let lark = tool(text(Grammar::Lark("start: \"a\"+".to_owned())));
        let schema = enforced_schema(&lark).unwrap();
        assert_eq!(schema["properties"]["input"], json!({"type": "string", "pattern": "^(?:(?:(?:a)+))$"}));
        assert!(enforced_schema(&tool(text(Grammar::Lark("start: start".to_owned())))).is_err());
    }
}
