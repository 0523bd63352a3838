//! Hermes's calls: an object with `name` and `arguments` between tags, also of Qwen 2.5 and 3, SmolLM and Granite 4.

use super::{FormatDefinition, FormatOptions};
use crate::{
    grammar::GrammarError,
    tools::{
        CallKind, CallSyntax, ParserContext,
        json_calls::JsonSyntax,
        lark::{AllowedCalls, FormatRules, repeated},
        write::{object, write_marked},
    },
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Syntax of the calls that the format's templates show.
const EXACT: JsonSyntax = JsonSyntax::marked(&[OPEN], &[CLOSE]);

/// Syntax that includes an answer without markers that is one object or one list.
const LENIENT: JsonSyntax = JsonSyntax { is_bare: true, ..EXACT };

/// Syntax that includes the calls of Qwen2.5-Coder, which leaves out or replaces the markers. In 22 of 22 answers to
/// questions of a benchmark, it wrote its call in a fence.
const FENCED: JsonSyntax =
    JsonSyntax { repeats: true, frames: &[("```json", "```"), ("<tools>", "</tools>")], ..LENIENT };

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains(OPEN),
    markers: &[OPEN, CLOSE],
    parser: |context| parser(LENIENT, context),
    rules: |allowed| rules(LENIENT, allowed),
    write: |calls, message| {
        write_marked(calls, message, [OPEN, CLOSE], |call| format!("\n{}\n", object(call, EXACT.key)));
    },
    options: FormatOptions::BASE,
    #[cfg(test)]
    examples: tests::examples,
};

/// The format of models whose template is that of [`FORMAT`], and that do not follow it.
pub(super) const FENCED_FORMAT: FormatDefinition = FormatDefinition {
    is_in: |_| false,
    parser: |context| parser(FENCED, context),
    rules: |allowed| rules(FENCED, allowed),
    #[cfg(test)]
    examples: tests::fenced_examples,
    ..FORMAT
};

fn parser(lenient: JsonSyntax, context: &ParserContext<'_>) -> Option<Box<dyn CallSyntax + Send>> {
    let syntax = if context.calls == CallKind::OfGrammar { EXACT } else { lenient };
    syntax.parser(context)
}

fn rules(lenient: JsonSyntax, allowed: &AllowedCalls<'_>) -> Result<FormatRules, GrammarError> {
    let open = allowed.markers.item(OPEN);
    let close = allowed.markers.item(CLOSE);
    let calls = repeated("call", "\n", allowed.limit);
    let calls = format!("calls: {calls}\ncall: {open} body\nbody: \"\\n\" object \"\\n\" {close}\n");
    lenient.rules(&calls, allowed.functions, allowed.limit)
}

#[cfg(test)]
mod tests {
    use narthex_spec::ToolFormat;

    use crate::tools::{
        CallReading, TextEnd, ToolEvent, ToolParser,
        examples::{Examples, TemplateExample, Transcript, WEATHER, complete, cut, tools},
    };

    const CALL: &str = r#"{"name": "get_weather", "arguments": {"city": "Brno", "days": 2}}"#;

    pub(super) fn examples() -> Examples {
        let mut transcripts = marked_calls();
        transcripts.extend(unmarked_calls());
        transcripts.extend(broken_after_arguments());
        transcripts.extend(
            framed_calls().into_iter().map(|(answer, _)| complete(answer.clone(), format!("{answer:?}"))),
        );
        transcripts.push(cut(r#"<tool_call>{"name": "stop", "arguments": {"a": "x"#, r#"{"a": "x"#));
        let templates = vec![
            TemplateExample::new("qwen2.5"),
            TemplateExample::new("qwen3"),
            TemplateExample::new("hermes3"),
            TemplateExample::new("granite4"),
        ];
        Examples { has_text: true, ..Examples::new(templates, transcripts) }
    }

    pub(super) fn fenced_examples() -> Examples {
        let mut transcripts = marked_calls();
        transcripts.extend(unmarked_calls());
        transcripts.extend(broken_after_arguments());
        transcripts.extend(framed_calls().into_iter().map(|(answer, events)| complete(answer, events)));
        Examples { has_text: true, ..Examples::new(Vec::new(), transcripts) }
    }

    /// Returns answers after reports of Qwen2.5-Coder, with their calls. They are texts of other models.
    fn framed_calls() -> Vec<(String, String)> {
        let whole = CALL.strip_suffix('}').unwrap();
        let two = format!("{WEATHER} {WEATHER}");
        vec![
            (format!("```json\n{CALL}\n```"), WEATHER.to_owned()),
            (format!("```json\n[{CALL},\n{CALL}]\n```\n"), two.clone()),
            (format!("```json\n{whole}\n```"), WEATHER.to_owned()),
            (format!("<tools>\n{whole}\n{whole}\n</tools>"), two.clone()),
            (format!("<tools>\n{CALL}\n{{\"name\": \"stop\"}}\n</tools>"), format!("{WEATHER} stop( {{}} )")),
            (format!("<tools>\n{CALL}\n</tools>\n<tools>{CALL}"), two.clone()),
            (format!("\n{CALL}\n{CALL}\n"), two),
        ]
    }

    /// Returns answers after the chat templates of Hermes 3 and Qwen 2.5, which show calls to the model.
    fn marked_calls() -> Vec<Transcript> {
        let call = format!("<tool_call>\n{CALL}\n</tool_call>");
        vec![
            complete(&call, WEATHER),
            complete(format!("I look.\n\n{call}\n{call}\n"), format!("\"I look.\" {WEATHER} {WEATHER}")),
            complete(format!("{call}\nDone."), format!("{WEATHER} \"\\nDone.\"")),
            complete(
                "<tool_call>[{\"name\":\"stop\",\"arguments\":{}},{\"name\":\"stop\"}]</tool_call>",
                "stop( {} ) stop( {} )",
            ),
            complete(
                r#"<tool_call>{"arguments": {"city": "a \"}\" é\\"}, "name": "get_weather"}</tool_call>"#,
                r#"get_weather( {"city":"a \"}\" é\\"} )"#,
            ),
            complete(
                r#"<tool_call>{"name":"get_weather","arguments":"{\"city\":\"x\"}"}</tool_call>"#,
                r#"get_weather( {"city":"x"} )"#,
            ),
            complete("a < b, <tool> and <tool_", r#""a < b, <tool> and <tool_""#),
            complete(
                "<tool_call>\nget_weather(1)</tool_call> x",
                r#"malformed "<tool_call>\n" "get_weather(1)</tool_call> x""#,
            ),
            complete(
                "<tool_call>{\"name\": \"stop\", \"argu",
                r#"malformed "<tool_call>{\"name\": \"stop\", \"argu""#,
            ),
            complete(
                "<tool_call>{\"name\":\"stop\",\"arguments\":{\"a\": tru}} x",
                r#"stop( broken "{\"a\": tru}" malformed "<tool_call>{\"name\":\"stop\",\"arguments\":{\"a\": tru}" "} x""#,
            ),
            complete("plain\n", r#""plain\n""#),
        ]
    }

    /// Returns answers in which an object goes wrong after its arguments, as small models write them.
    fn broken_after_arguments() -> Vec<Transcript> {
        let whole = CALL.strip_suffix('}').unwrap();
        let two = format!("{WEATHER} {WEATHER}");
        let mut transcripts = vec![
            complete(format!("<tool_call>\n{whole}\n</tool_call>"), WEATHER),
            complete(format!("<tool_call>\n{whole}\n</tool_call>\n<tool_call>{whole}</tool_call>"), &two),
            complete(format!("<tool_call>\n{whole}\nDone."), format!("{WEATHER} \"\\nDone.\"")),
            complete(format!("<tool_call>[{CALL}, {whole}]</tool_call>"), &two),
            complete(whole, WEATHER),
            complete(format!("{whole}, \"age\": 5}}"), WEATHER),
            complete("<tool_call>{\"name\": \"stop\", \"arguments\": null\n</tool_call>", "stop( {} )"),
            complete("<tool_call>{\"arguments\": {}, \"name\": \"stop\"</tool_call>", "stop( {} )"),
            complete(
                format!("<tool_call>{whole}, oops</tool_call>"),
                format!("{WEATHER} \", oops</tool_call>\""),
            ),
            complete(
                format!("<tool_call>{whole}, \"id\": \"é\", x {whole}"),
                format!("{WEATHER} {:?}", format!(", \"id\": \"é\", x {whole}")),
            ),
            complete("<tool_call>{\"name\": \"stop\", \"arguments\": null, oops", "stop( {} ) \", oops\""),
            complete(format!("<tool_call>{whole}, \"id\": \""), format!("{WEATHER} \", \\\"id\\\": \\\"\"")),
        ];
        for rest in ["", "\n", "\n</tool", ", \"id\": \"x"] {
            let arguments = r#"{"city": "Brno", "days": 2}"#;
            transcripts.push(cut(format!("<tool_call>{whole}{rest}"), arguments));
        }
        // The first arguments count.
        transcripts.push(complete(
            r#"<tool_call>{"name":"stop","arguments":{"a":1},"parameters":{"b":2}}</tool_call>"#,
            r#"stop( {"a":1} )"#,
        ));
        transcripts
    }

    /// Returns answers of models that leave out the markers.
    fn unmarked_calls() -> Vec<Transcript> {
        let mut transcripts = vec![
            complete(CALL, WEATHER),
            complete(format!("\n[{CALL},\n{CALL}]\n"), format!("{WEATHER} {WEATHER}")),
            complete(format!("{CALL}</tool_call>"), WEATHER),
            complete(
                format!("<tool_call>\n{CALL}\n</tool_call>\n{CALL}"),
                format!("{WEATHER} {:?}", format!("\n{CALL}")),
            ),
        ];
        // Other objects, objects beside text, arguments that the tool does not allow, and declarations are not calls.
        let texts = [
            r#"{"name": "Ann", "arguments": {}}"#,
            r#"{"name": "Ann", "age": 5}"#,
            r#"{"arguments": {}, "name": "Ann"}"#,
            "```json\n{\"name\": \"other\", \"arguments\": {}}\n```",
            "```json\n[1, 2]\n```",
            "```python\nget_weather()\n```",
            "```js",
            "<tools> are <b>",
            "{",
            &format!("{CALL}\nDone."),
            &format!("```json\n[{CALL},\n{CALL}]\n```\nDone."),
            r#"{"name": "get_weather", "arguments": {"city": 5}}"#,
            r#"{"name": "stop", "arguments": {"a": 1"#,
            r#"{"name": "stop", "parameters": {"type": "object", "properties": {}}}"#,
            r#"{"type": "function", "function": {"name": "stop", "parameters": {}}}"#,
            r#"{"name": "stop", "description": "stop", "parameters": {"type": "object"}}"#,
            &format!("Here:\n{CALL}"),
            &format!("Here:\n```json\n{CALL}\n```"),
        ];
        transcripts.extend(texts.map(|text| complete(text, format!("{text:?}"))));
        transcripts
    }

    #[test]
    fn a_quoted_call_of_a_tool_that_is_not_listed_is_text() {
        let quoted =
            r#"Write <tool_call>{"name": "FUNCTION", "arguments": {"ARGUMENT": "VALUE"}}</tool_call>."#;
        let mut parser = ToolParser::new(ToolFormat::Hermes, &tools(), CallReading::Lenient, &[]);
        let events = [parser.push(quoted), parser.finish(TextEnd::Complete)].concat();
        let texts = events.into_iter().map(|event| match event {
            ToolEvent::Text(text) => text,
            other => panic!("{other:?}"),
        });
        assert_eq!(texts.collect::<String>(), quoted);
    }

    #[test]
    fn calls_without_markers_are_text_in_exact_answers() {
        let mut parser = ToolParser::new(ToolFormat::Hermes, &tools(), CallReading::Exact, &[]);
        let events = [parser.push(CALL), parser.finish(TextEnd::Complete)].concat();
        assert_eq!(events, [ToolEvent::Text(CALL.to_owned())]);
    }
}
