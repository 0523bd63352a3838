//! Grammars of answers with tools.

use std::borrow::Cow;

use narthex_spec::ToolFormat;
use narthex_text::{
    grammar::{Grammar, GrammarError, best_effort},
    tokenizer::Tokenizer,
    tools::{Callable, ContentRule, call_grammar, content_grammar},
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
        return content.map(|content| content_grammar(tokenizer, format, content)).transpose();
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

/// Returns the schema that the arguments of guaranteed calls follow: that of the tool, with the grammar of its text. It
/// allows only objects. If the tool is not strict, keywords that cannot be enforced are left out.
///
/// # Errors
/// The schema allows no objects, or the grammar of the text has no regular expression.
pub(in crate::serve) fn enforced_schema(tool: &Tool) -> Result<Cow<'_, Value>, GrammarError> {
    let mut schema = of_objects(&tool.parameters)?;
    if tool.strictness == Strictness::BestEffort {
        schema = Cow::Owned(best_effort(&schema));
    }
    let Some(text) = &tool.text else { return Ok(schema) };
    let properties = schema.to_mut().get_mut("properties");
    let property = properties.and_then(|properties| properties.get_mut(&text.name));
    if let Some(fields) = property.and_then(Value::as_object_mut) {
        fields.insert("pattern".to_owned(), text.grammar.pattern()?.into());
    }
    Ok(schema)
}

/// Returns the schema of the objects that a schema allows.
fn of_objects(schema: &Value) -> Result<Cow<'_, Value>, GrammarError> {
    let allows_objects = match &schema["type"] {
        Value::String(name) if name == "object" && !schema.as_object().is_some_and(has_no_properties) => {
            return Ok(Cow::Borrowed(schema));
        }
        Value::String(name) if name == "object" => true,
        Value::Array(names) => names.iter().any(|name| name == "object"),
        found => found.is_null(),
    };
    if !allows_objects {
        let what = format!("the schema's \"type\": {}", schema["type"]);
        let reason = "the arguments of a call are an object".to_owned();
        return Err(GrammarError::UnsupportedValue { what, reason });
    }
    let mut fields = match schema {
        Value::Bool(true) => Map::new(),
        Value::Object(fields) => fields.clone(),
        // The compiler names what is wrong.
        other => return Ok(Cow::Borrowed(other)),
    };
    fields.insert("type".to_owned(), "object".into());
    if has_no_properties(&fields) {
        fields.insert("additionalProperties".to_owned(), false.into());
    }
    Ok(Cow::Owned(fields.into()))
}

/// Keywords of a schema without which it names no properties.
const OF_PROPERTIES: [&str; 14] = [
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "minProperties",
    "required",
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "enum",
    "const",
];

/// Returns true if a schema of an object neither names nor mentions properties. A tool with such a schema takes no
/// arguments.
fn has_no_properties(schema: &Map<String, Value>) -> bool {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.is_none_or(Map::is_empty) && !OF_PROPERTIES.iter().any(|keyword| schema.contains_key(*keyword))
}

/// Returns the settings with open schemas of the tools whose calls need not be valid: the names of their properties, with
/// any values. Returns `None` if the settings require calls, or have no such tools.
pub(in crate::serve) fn with_open_schemas(settings: &ToolSettings) -> Option<ToolSettings> {
    let mut settings = settings.clone();
    let mut found = false;
    for tool in settings.tools.iter_mut().filter(|tool| tool.strictness == Strictness::BestEffort) {
        let properties = tool.parameters.get("properties").and_then(Value::as_object);
        let names = properties.into_iter().flat_map(Map::keys);
        let properties: Map<String, Value> = names.map(|name| (name.clone(), json!({}))).collect();
        let open = json!({"type": "object", "properties": properties, "additionalProperties": true});
        tool.parameters = open.into();
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
    use narthex_text::{
        grammar::GrammarCompiler,
        tokenizer::{GgufVocab, Specials},
    };

    use super::*;
    use crate::serve::request::TextArgument;

    /// Token that ends an answer.
    const END: u32 = 0;

    /// Returns a tokenizer with a token for each ASCII character.
    fn tokenizer() -> Tokenizer {
        let characters = ('!'..='~').chain(['Ġ', 'Ċ']).map(String::from);
        let tokens: Vec<String> = ["<|end|>".to_owned()].into_iter().chain(characters).collect();
        let types = (0..tokens.len()).map(|id| if id == END as usize { 3 } else { 1 }).collect();
        let (model, pre) = ("gpt2".to_owned(), Some("smollm".to_owned()));
        let vocab = GgufVocab { model, pre, types: Some(types), tokens, ..GgufVocab::default() };
        Tokenizer::from_gguf(&vocab).unwrap()
    }

    fn tool_of(parameters: Value) -> Tool {
        let (name, strictness) = ("f".to_owned(), Strictness::BestEffort);
        Tool { name, description: None, parameters: parameters.into(), strictness, text: None, field: None }
    }

    #[test]
    fn only_calls_that_must_be_valid_restrict_the_answer() {
        let tokenizer = tokenizer();
        let object = Grammar::json_object();
        let check = |choice, strictness, content: Option<&Grammar>, expect: &str| {
            let parameters = json!({"type": "object"});
            let tool = Tool {
                name: "f".to_owned(),
                description: None,
                parameters: parameters.into(),
                strictness,
                text: None,
                field: None,
            };
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
        check(ToolChoice::Auto, Strict, None, "start: bare | text");
        check(ToolChoice::Auto, BestEffort, Some(&object), "start: calls | content");
        for content in [Grammar::Regex("a".to_owned()), Grammar::Lark("start: \"a\"".to_owned())] {
            check(ToolChoice::Auto, BestEffort, Some(&content), "start: calls | content");
        }
        check(ToolChoice::Required, BestEffort, None, "start: calls");
        check(ToolChoice::Function("f".to_owned()), BestEffort, Some(&object), "start: calls");
    }

    #[test]
    fn only_strict_tools_are_refused_for_keywords_that_cannot_be_enforced() {
        let parameters =
            json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
        let tool = |strictness| Tool { strictness, ..tool_of(parameters.clone()) };
        let relaxed = json!({"type": "object", "properties": {"a": {"type": "array"}}});
        assert_eq!(*enforced_schema(&tool(Strictness::BestEffort)).unwrap(), relaxed);
        assert_eq!(*enforced_schema(&tool(Strictness::Strict)).unwrap(), parameters);
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
            Tool {
                name,
                description: None,
                parameters: parameters.into(),
                strictness,
                text: None,
                field: None,
            }
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
            Tool {
                name,
                description: None,
                parameters: parameters.into(),
                strictness: Strictness::Strict,
                text,
                field: None,
            }
        };
        assert_eq!(*enforced_schema(&tool(None)).unwrap(), parameters);
        let lark = tool(text(Grammar::Lark("start: \"a\"+".to_owned())));
        let schema = enforced_schema(&lark).unwrap();
        assert_eq!(schema["properties"]["input"], json!({"type": "string", "pattern": "^(?:(?:(?:a)+))$"}));
        assert!(enforced_schema(&tool(text(Grammar::Lark("start: start".to_owned())))).is_err());
    }

    #[test]
    fn arguments_of_guaranteed_calls_are_objects() {
        let tokenizer = tokenizer();
        let compiler = GrammarCompiler::new(&tokenizer, &[END]).unwrap();
        let object = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let definitions = json!({"o": object, "a": {"properties": {"a": {"$ref": "#/$defs/o"}}}});
        let without_properties = [
            json!({}),
            json!(true),
            json!({"type": null}),
            json!({"type": ["object", "null"]}),
            json!({"type": "object"}),
            json!({"type": "object", "properties": {}}),
            json!({"description": "None."}),
        ];
        let with_properties = [
            json!({"type": "object", "additionalProperties": true}),
            json!({"properties": {"a": {"type": "integer"}}}),
            json!({"required": ["a"]}),
            json!({"$ref": "#/$defs/o", "$defs": definitions}),
            json!({"anyOf": [object, {"type": "integer"}]}),
            json!({"oneOf": [object, {"type": "integer"}]}),
            json!({"allOf": [{"$ref": "#/$defs/o"}], "$defs": definitions}),
            json!({"allOf": [{}, {"minProperties": 1}]}),
            json!({"enum": [5, {"a": 1}]}),
        ];
        let without = without_properties.into_iter().map(|schema| (schema, false));
        for (schema, takes_any) in without.chain(with_properties.into_iter().map(|schema| (schema, true))) {
            let (tools, choice) = (vec![tool_of(schema)], ToolChoice::Required);
            let settings = ToolSettings { tools, choice, calls: CallLimit::Any };
            let grammar = answer_grammar(&settings, ToolFormat::Hermes, &tokenizer, None).unwrap().unwrap();
            let grammar = compiler.compile(&grammar).unwrap_or_else(|error| panic!("{error}: {settings:?}"));
            let follows = |arguments: &str| {
                let text =
                    format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>");
                let mut matcher = grammar.clone();
                tokenizer.encode(&text, Specials::AsText).unwrap().into_iter().all(|token| {
                    matcher.prepare();
                    let is_allowed = matcher.allowed()[token as usize / 32] >> (token % 32) & 1 == 1;
                    matcher.accept(token);
                    is_allowed
                })
            };
            let allowed = ["5", "null", "[]", "\"a\"", "{\"a\": 1}"].map(follows);
            assert_eq!(allowed, [false, false, false, false, takes_any], "{settings:?}");
            assert!(takes_any || follows("{}"), "{settings:?}");
        }
    }

    #[test]
    fn schemas_without_objects_are_refused() {
        for kind in [json!("string"), json!(["array", "null"]), json!(5)] {
            let error = enforced_schema(&tool_of(json!({"type": kind}))).unwrap_err().to_string();
            assert!(error.starts_with(&format!("the schema's \"type\": {kind} cannot")), "{error}");
        }
    }
}
