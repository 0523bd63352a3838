//! Grammars that constrain the tool calls of an answer.

use narthex_text::grammar::{Grammar, GrammarError, json_rule};

use super::{CLOSE, OPEN};
use crate::serve::request::{CallLimit, Strictness, Tool, ToolChoice, ToolSettings};

/// Returns the grammar of an answer with these tools, or `None` if any text is allowed. `content` is the grammar of an
/// answer without calls.
pub(in crate::serve) fn answer_grammar(
    settings: &ToolSettings,
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
    let start = match (&settings.choice, content) {
        (ToolChoice::Auto, None) if callable.iter().all(|tool| tool.strictness == Strictness::BestEffort) => {
            return Ok(None);
        }
        (ToolChoice::Auto, None) => free_text(settings.calls),
        (ToolChoice::Auto, Some(Grammar::JsonSchema(schema))) => {
            format!("start: {} | content\ncontent: {}\n", calls(settings.calls), json_rule(schema)?)
        }
        // The two grammars have rule names of their own.
        (ToolChoice::Auto, Some(_)) => return Ok(content.cloned()),
        (ToolChoice::Function(_), _) => format!("start: {}\n", calls(CallLimit::One)),
        (ToolChoice::Required | ToolChoice::None, _) => format!("start: {}\n", calls(settings.calls)),
    };
    let names: Vec<String> = (0..callable.len()).map(|index| format!("tool_{index}")).collect();
    let mut source = format!("{start}call: {} body\nbody: {}\n", quoted(OPEN), names.join(" | "));
    for (index, tool) in callable.iter().enumerate() {
        let head = format!("\n{{\"name\": \"{}\", \"arguments\": ", tool.name);
        let tail = format!("}}\n{CLOSE}");
        let (head, tail) = (quoted(&head), quoted(&tail));
        source.push_str(&format!("tool_{index}: {head} arguments_{index} {tail}\n"));
        source.push_str(&format!("arguments_{index}: {}\n", json_rule(&tool.parameters)?));
    }
    Ok(Some(Grammar::Lark(source)))
}

fn calls(limit: CallLimit) -> &'static str {
    match limit {
        CallLimit::One => "call",
        CallLimit::Any => r#"call ("\n" call)*"#,
    }
}

/// Returns the rules of a text in which every call is valid.
fn free_text(limit: CallLimit) -> String {
    let count = match limit {
        CallLimit::One => "?",
        CallLimit::Any => "*",
    };
    format!(
        "start: after_text{count} TEXT\nafter_text: opening body\nopening[lazy]: TEXT {}\nTEXT: /(\\n|.)*/\n",
        quoted(OPEN)
    )
}

/// Returns a string of a Lark grammar, whose escapes are those of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use narthex_text::{
        grammar::{GrammarCompiler, GrammarMatcher},
        tokenizer::{GgufVocab, Specials, Tokenizer},
    };
    use serde_json::{Value, json};

    use super::*;

    /// A tokenizer of single printable characters.
    fn tokenizer() -> Tokenizer {
        let mut tokens: Vec<String> = ('!'..='~').map(String::from).collect();
        tokens.extend(["Ġ", "Ċ", "<|end|>"].map(str::to_owned));
        let types = (1..=tokens.len()).map(|id| if id == tokens.len() { 3 } else { 1 }).collect();
        let vocab = GgufVocab {
            model: "gpt2".to_owned(),
            pre: Some("smollm".to_owned()),
            types: Some(types),
            tokens,
            ..GgufVocab::default()
        };
        Tokenizer::from_gguf(&vocab).unwrap()
    }

    fn settings(choice: ToolChoice, calls: CallLimit) -> ToolSettings {
        let tool = |name: &str, parameters: Value| Tool {
            name: name.to_owned(),
            description: None,
            parameters,
            strictness: Strictness::Strict,
        };
        let city = json!({
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}},
            "required": ["city"],
            "additionalProperties": false,
            "$defs": {"city": {"enum": ["Rome", "Oslo"]}},
        });
        let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
        ToolSettings { tools: vec![tool("weather", city), tool("time", none)], choice, calls }
    }

    /// Feeds a text; returns whether it follows the grammar to its end.
    fn follows(grammar: &Grammar, text: &str) -> bool {
        let tokenizer = tokenizer();
        let end = tokenizer.token_id("<|end|>").unwrap();
        let compiler = GrammarCompiler::new(&tokenizer, &[end]).unwrap();
        let mut matcher = compiler.compile(grammar).unwrap();
        let is_allowed = |matcher: &mut GrammarMatcher, token: u32| {
            matcher.prepare();
            matcher.allowed()[token as usize / 32] >> (token % 32) & 1 == 1
        };
        let tokens = tokenizer.encode(text, Specials::AsText).unwrap();
        let all = tokens.into_iter().all(|token| {
            let allowed = !matcher.is_complete() && is_allowed(&mut matcher, token);
            matcher.accept(token);
            allowed
        });
        all && (matcher.is_complete() || is_allowed(&mut matcher, end))
    }

    const ROME: &str =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    const TIME: &str = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";

    #[test]
    fn calls_are_guaranteed() {
        let check = |settings: &ToolSettings, content: Option<&Grammar>, text: &str, expect: bool| {
            let grammar = answer_grammar(settings, content).unwrap().unwrap();
            assert_eq!(follows(&grammar, text), expect, "{text} under {grammar:?}");
        };
        let required = settings(ToolChoice::Required, CallLimit::Any);
        check(&required, None, ROME, true);
        check(&required, None, &format!("{ROME}\n{TIME}"), true);
        check(&required, None, "Hello", false);
        check(&required, None, &ROME.replace("Rome", "Bonn"), false);
        check(&settings(ToolChoice::Required, CallLimit::One), None, &format!("{ROME}\n{TIME}"), false);
        let named = settings(ToolChoice::Function("time".to_owned()), CallLimit::Any);
        check(&named, None, TIME, true);
        check(&named, None, ROME, false);
        let auto = settings(ToolChoice::Auto, CallLimit::Any);
        check(&auto, None, "Hello <b>, 1 < 2", true);
        check(&auto, None, ROME, true);
        check(&auto, None, &format!("Wait. {ROME} {TIME} done"), true);
        check(&auto, None, &format!("Wait. {}", ROME.replace("Rome", "Bonn")), false);
        let schema = Grammar::JsonSchema(
            json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false}),
        );
        check(&auto, Some(&schema), "{\"a\": 1}", true);
        check(&auto, Some(&schema), TIME, true);
        check(&auto, Some(&schema), "Hello", false);
    }

    #[test]
    fn other_answers_are_free() {
        let none = settings(ToolChoice::None, CallLimit::Any);
        assert_eq!(answer_grammar(&none, None), Ok(None));
        let mut auto = settings(ToolChoice::Auto, CallLimit::Any);
        auto.tools.iter_mut().for_each(|tool| tool.strictness = Strictness::BestEffort);
        assert_eq!(answer_grammar(&auto, None), Ok(None));
        assert_eq!(answer_grammar(&none, Some(&Grammar::json_object())), Ok(Some(Grammar::json_object())));
    }
}
