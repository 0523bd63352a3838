//! Nemotron's calls: a list of objects between two markers.

use super::{FormatDefinition, FormatOptions};
use crate::tools::{
    json_calls::{JsonSyntax, list_rule},
    write::list,
};

const OPEN: &str = "<TOOLCALL>";
const CLOSE: &str = "</TOOLCALL>";
const SYNTAX: JsonSyntax = JsonSyntax::marked(&[OPEN], &[CLOSE]);

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains(OPEN),
    markers: &[OPEN, CLOSE],
    parser: |context| SYNTAX.parser(context),
    rules: |allowed| {
        let open = allowed.markers.item(OPEN);
        let close = allowed.markers.item(CLOSE);
        let list = list_rule(allowed.limit);
        let calls = format!("calls: {open} body\nbody: {list} {close}\n");
        SYNTAX.rules(&calls, allowed.functions, allowed.limit)
    },
    write: |calls, message| {
        message.content.push_marker(OPEN);
        message.content.push_str(&list(calls));
        message.content.push_marker(CLOSE);
    },
    options: FormatOptions { results: ["<TOOL_RESPONSE>", "</TOOL_RESPONSE>"], ..FormatOptions::BASE },
    #[cfg(test)]
    examples: tests::examples,
};

#[cfg(test)]
mod tests {
    use crate::tools::examples::{Examples, LIST, LISTED, NO_CALLS, TemplateExample, complete, cut};

    /// Returns answers after the chat template of Nemotron Nano 2, which shows calls to the model.
    pub(super) fn examples() -> Examples {
        let transcripts = vec![
            complete(format!("<TOOLCALL>{LIST}</TOOLCALL>"), LISTED),
            complete(format!("I look.\n\n<TOOLCALL>{LIST}</TOOLCALL>\n"), format!("\"I look.\" {LISTED}")),
            complete(format!("<TOOLCALL>{}</TOOLCALL>", LIST.replace("}]", "]")), LISTED),
            complete("<TOOLCALL>stop</TOOLCALL>", r#"malformed "<TOOLCALL>" "stop</TOOLCALL>""#),
            complete("[1, 2]", r#""[1, 2]""#),
            cut(r#"<TOOLCALL>[{"name": "stop", "arguments": {"a": "x"#, r#"{"a": "x"#),
        ];
        let template = TemplateExample {
            difference: Some("the block of reasoning, which earlier answers lose"),
            end: "<SPECIAL_12>",
            abilities: NO_CALLS,
            ..TemplateExample::new("nemotron-nano2")
        };
        Examples { has_text: true, ..Examples::new(vec![template], transcripts) }
    }
}
