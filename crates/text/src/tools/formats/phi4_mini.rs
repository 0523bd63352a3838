//! Phi-4 mini's calls: a list of objects between two markers.

use super::{FormatDefinition, FormatOptions};
use crate::tools::{
    json_calls::{JsonSyntax, list_rule},
    write::list,
};

const OPEN: &str = "<|tool_call|>";
const CLOSE: &str = "<|/tool_call|>";
const SYNTAX: JsonSyntax =
    JsonSyntax { is_bare: true, frames: &[("functools", "")], ..JsonSyntax::marked(&[OPEN], &[CLOSE]) };

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains("<|tool|>"),
    markers: &[OPEN, CLOSE],
    parser: |context| SYNTAX.parser(context),
    rules: |allowed| {
        let open = allowed.markers.item(OPEN);
        let close = allowed.markers.item(CLOSE);
        let list = list_rule(allowed.limit);
        SYNTAX.rules(&format!("calls: {open} body\nbody: {list} {close}\n"), allowed.functions, allowed.limit)
    },
    write: |calls, message| {
        message.content.push_marker(OPEN);
        message.content.push_str(&list(calls));
        message.content.push_marker(CLOSE);
    },
    options: FormatOptions::BASE,
    #[cfg(test)]
    examples: tests::examples,
};

#[cfg(test)]
mod tests {
    use crate::tools::examples::{Examples, LIST, LISTED, NO_CALLS, TemplateExample, complete};

    /// Returns answers after the model card of Phi-4 mini, also without the last brace.
    pub(super) fn examples() -> Examples {
        let transcripts = vec![
            complete(format!("<|tool_call|>{LIST}<|/tool_call|>"), LISTED),
            complete(format!("functools{LIST}"), LISTED),
            complete(LIST, LISTED),
            complete(format!("<|tool_call|>{}<|/tool_call|>", LIST.replace("}]", "]")), LISTED),
            complete("[1, 2] and", r#""[1, 2] and""#),
        ];
        let templates = vec![TemplateExample { abilities: NO_CALLS, ..TemplateExample::new("phi4-mini") }];
        Examples { has_text: true, ..Examples::new(templates, transcripts) }
    }
}
