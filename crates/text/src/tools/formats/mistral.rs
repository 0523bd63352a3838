//! Mistral's calls: a list of objects after a marker; or, of newer models, a marker, a name and arguments for each.

use super::{FormatDefinition, FormatOptions};
use crate::{
    grammar::GrammarError,
    template::{Message, Role},
    tools::{
        json_calls::{JsonSyntax, list_rule},
        lark::{AllowedCalls, FormatRules, one_of, quoted, repeated},
        name_head::HeadMarkers,
        write::list,
    },
};

const OPEN: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const HEADS: HeadMarkers = HeadMarkers { id: Some(CALL_ID), arguments: "[ARGS]" };
const SYNTAX: JsonSyntax = JsonSyntax {
    heads: Some(HEADS),
    tail: r#""}" | ", \"id\": \"" /[a-zA-Z0-9]{9}/ "\"}""#,
    ..JsonSyntax::marked(&[OPEN], &[])
};

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains(OPEN),
    markers: &[OPEN, HEADS.arguments, CALL_ID],
    parser: |context| SYNTAX.parser(context),
    rules,
    write: |calls, message| {
        message.content.push_marker(OPEN);
        message.content.push_str(&list(calls));
    },
    options: FormatOptions { adapt_ids, ..FormatOptions::BASE },
    #[cfg(test)]
    examples: tests::examples,
};

/// Returns the rules of calls: names before arguments if the vocabulary divides them, otherwise lists.
fn rules(allowed: &AllowedCalls<'_>) -> Result<FormatRules, GrammarError> {
    let open = allowed.markers.item(OPEN);
    let list = list_rule(allowed.limit);
    let Some(end) = allowed.markers.token(HEADS.arguments) else {
        let calls = format!("calls: {open} body\nbody: \" \"? {list}\n");
        return SYNTAX.rules(&calls, allowed.functions, allowed.limit);
    };
    let calls = repeated("call", "", allowed.limit);
    let heads = one_of("headed", allowed.functions.len());
    let mut calls = format!("calls: {calls}\ncall: {open} headed\nheaded: {heads}\nbody: headed | {list}\n");
    for (index, function) in allowed.functions.iter().enumerate() {
        calls.push_str(&format!("headed_{index}: {} {end} arguments_{index}\n", quoted(function.name)));
    }
    SYNTAX.rules(&calls, allowed.functions, allowed.limit)
}

/// Changes the ids of a message's calls to those that Mistral's templates accept.
fn adapt_ids(message: &mut Message) {
    let ids = message.tool_calls.iter_mut().map(|call| &mut call.id).chain([&mut message.tool_call_id]);
    ids.for_each(|id| *id = id.as_deref().map(short_id));
    // A call without an id belongs to the result that follows it.
    message.tool_calls.iter_mut().for_each(|call| _ = call.id.get_or_insert_with(|| short_id("")));
    if message.role == Role::Tool {
        message.tool_call_id.get_or_insert_with(|| short_id(""));
    }
}

/// Returns the id in the form that Mistral's templates require: nine letters and digits.
fn short_id(id: &str) -> String {
    const LENGTH: usize = 9;
    if id.len() == LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    // FNV-1a: equal ids must stay equal between requests.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")[..LENGTH].to_owned()
}

#[cfg(test)]
mod tests {
    use narthex_spec::ToolFormat;

    use super::*;
    use crate::{
        template::FunctionCall,
        tools::{
            CallReading, ToolEvent, ToolParser,
            examples::{Examples, LIST, LISTED, TemplateExample, complete},
            json_text,
        },
    };

    /// Returns answers after the chat templates of Mistral: that of Nemo for lists, that of Ministral 3 for names
    /// before arguments.
    pub(super) fn examples() -> Examples {
        let headed =
            r#"[TOOL_CALLS]get_weather[ARGS]{"city": "Brno", "days": 2}[TOOL_CALLS]stop[CALL_ID]a1[ARGS]{}"#;
        let transcripts = vec![
            complete(format!("[TOOL_CALLS]{LIST}"), LISTED),
            complete(format!("[TOOL_CALLS] {LIST}"), LISTED),
            complete(headed, LISTED),
            complete(format!("[TOOL_CALLS]{}", LIST.replace("}]", "]")), LISTED),
            complete(r#"[TOOL_CALLS][{"name": "stop", "arguments": {}, "id": "abcdefghi"]"#, "stop( {} )"),
            complete("[TOOL_CALLS]x y{", r#"malformed "[TOOL_CALLS]" "x y{""#),
            // A marker without a call is followed by text, from the first character that no name has.
            complete("Use [TOOL_CALLS]stop of it", r#""Use" malformed " [TOOL_CALLS]" "stop of it""#),
            complete("[TOOL_CALLS]stop[ARGS] of it", r#"malformed "[TOOL_CALLS]" "stop[ARGS] of it""#),
            complete("[1]", r#""[1]""#),
        ];
        let templates = vec![
            TemplateExample {
                difference: Some("a space before the list of calls, and their ids"),
                ..TemplateExample::new("mistral-v0.3")
            },
            TemplateExample {
                difference: Some("the id of a call, which the server chooses"),
                ..TemplateExample::new("mistral-nemo")
            },
            TemplateExample { answer: Some(headed_call), ..TemplateExample::new("ministral3") },
        ];
        Examples { tokens: Some(&[OPEN]), has_text: true, ..Examples::new(templates, transcripts) }
    }

    /// Returns a call as Ministral 3 writes it.
    fn headed_call(call: &FunctionCall) -> String {
        format!("{OPEN}{}{}{}", call.name, HEADS.arguments, json_text(&call.arguments))
    }

    #[test]
    fn text_after_a_marker_without_a_call_is_not_withheld() {
        let mut parser = ToolParser::new(ToolFormat::Mistral, &[], CallReading::Lenient, &[OPEN]);
        let events = [parser.push("Use "), parser.push_marker(OPEN), parser.push("stop of ")].concat();
        let text = |text: &str| ToolEvent::Text(text.to_owned());
        assert_eq!(events, [text("Use"), ToolEvent::Malformed(" ".to_owned()), text("stop of")]);
        let mut parser = ToolParser::new(ToolFormat::Mistral, &[], CallReading::Lenient, &[OPEN]);
        let name = "n".repeat(200);
        let events = [parser.push_marker(OPEN), parser.push(&name)].concat();
        assert_eq!(events, [ToolEvent::Malformed(String::new()), text(&name)]);
    }

    #[test]
    fn ids_of_nine_letters_and_digits_stay() {
        assert_eq!(short_id("abcdefgh9"), "abcdefgh9");
        assert_ne!(short_id("abcdefgh-"), short_id("abcdefgh_"));
    }
}
