//! Granite 3's calls: a list of objects after a marker.

use super::{FormatDefinition, FormatOptions};
use crate::tools::{
    json_calls::{JsonSyntax, list_rule},
    write::list,
};

const OPEN: &str = "<|tool_call|>";

/// The markers of other models count only around an answer that has nothing else.
const SYNTAX: JsonSyntax = JsonSyntax {
    repeats: true,
    frames: &[("<tool_call>", "</tool_call>")],
    ..JsonSyntax::marked(&[OPEN], &[])
};

pub(super) const FORMAT: FormatDefinition = FormatDefinition {
    is_in: |template| template.contains(OPEN),
    markers: &[OPEN],
    parser: |context| SYNTAX.parser(context),
    rules: |allowed| {
        let open = allowed.markers.item(OPEN);
        let list = list_rule(allowed.limit);
        SYNTAX.rules(&format!("calls: {open} body\nbody: {list}\n"), allowed.functions, allowed.limit)
    },
    write: |calls, message| {
        message.content.push_marker(OPEN);
        message.content.push_str(&list(calls));
    },
    options: FormatOptions::BASE,
    #[cfg(test)]
    examples: tests::examples,
};

#[cfg(test)]
mod tests {
    use crate::tools::examples::{Examples, LIST, LISTED, NO_CALLS, TemplateExample, complete};

    /// Returns answers after the model card of Granite 3, also without the last brace.
    pub(super) fn examples() -> Examples {
        let unclosed = LIST.replace("}]", "]");
        let transcripts = vec![
            complete(format!("<|tool_call|>{LIST}"), LISTED),
            complete(format!("<|tool_call|>{unclosed}"), LISTED),
            complete(format!("<tool_call>{unclosed}</tool_call>"), LISTED),
        ];
        let templates = vec![TemplateExample { abilities: NO_CALLS, ..TemplateExample::new("granite3.3") }];
        Examples { has_text: true, ..Examples::new(templates, transcripts) }
    }
}
