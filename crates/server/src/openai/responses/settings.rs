//! Settings of a request that its response repeats.

use narthex_gateway::request::{HistoryOverflow, UsedSampling};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::item::{OutputItem, ReasoningPart, ResponseStatus, SummaryPart};
use crate::protocol::{
    custom_tools::{self, CUSTOM},
    outline::values_in,
    reply::WholeToolCall,
};

/// `truncation` of a request.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Truncation {
    /// The oldest turns of a conversation that is too long are omitted.
    Auto,
    /// A conversation that is too long is refused.
    Disabled,
}

/// Settings of a request that its response repeats.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
pub(crate) struct ResponseSettings {
    instructions: Option<String>,
    max_output_tokens: Option<u64>,
    pub(super) metadata: Option<Map<String, Value>>,
    parallel_tool_calls: Option<bool>,
    pub(super) previous_response_id: Option<String>,
    reasoning: Option<Value>,
    store: Option<bool>,
    temperature: Option<f64>,
    text: Option<Value>,
    tool_choice: Option<Value>,
    tools: Option<Vec<Value>>,
    top_p: Option<f64>,
    truncation: Option<Truncation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
}

/// Returns the number that has the same text, so that 0.2 is not 0.20000000298.
fn exact(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

impl ResponseSettings {
    /// Fills in the sampling of the answer that the request left out.
    pub(super) fn add_sampling(&mut self, sampling: UsedSampling) {
        self.temperature.get_or_insert_with(|| exact(sampling.temperature));
        self.top_p.get_or_insert_with(|| exact(sampling.top_p));
    }

    /// Fills in the defaults of settings that the request left out, but for its sampling.
    pub(super) fn with_defaults(mut self) -> Self {
        self.metadata.get_or_insert_default();
        self.parallel_tool_calls.get_or_insert(true);
        self.reasoning.get_or_insert_with(|| json!({"effort": null, "summary": null}));
        self.store.get_or_insert(true);
        self.text.get_or_insert_with(|| json!({"format": {"type": "text"}}));
        self.tool_choice.get_or_insert_with(|| json!("auto"));
        self.tools.get_or_insert_default();
        self.truncation.get_or_insert(Truncation::Disabled);
        self
    }

    /// Returns the treatment of a conversation that is too long.
    pub(super) fn overflow(&self) -> HistoryOverflow {
        match self.truncation {
            Some(Truncation::Auto) => HistoryOverflow::OmitOldest,
            Some(Truncation::Disabled) | None => HistoryOverflow::Refuse,
        }
    }

    /// Returns an upper bound on the number of generic values, nested ones included.
    pub(super) fn values(&self) -> usize {
        let single = [&self.reasoning, &self.text, &self.tool_choice].into_iter().flatten();
        let metadata = self.metadata.iter().flat_map(Map::values);
        single.chain(metadata).chain(self.tools.iter().flatten()).map(values_in).sum()
    }

    /// Returns true if this is the name of a custom tool, with its namespace if it has one.
    pub(super) fn is_custom(&self, name: &str) -> bool {
        let in_space = self.namespace_of(name).is_some_and(|(space, name)| {
            space["tools"].as_array().is_some_and(|tools| has_custom(tools, name))
        });
        in_space || has_custom(self.tools.as_deref().unwrap_or_default(), name)
    }

    /// Returns the namespace of a tool, and the tool's own name.
    fn namespace_of<'a>(&self, name: &'a str) -> Option<(&Value, &'a str)> {
        let tools = self.tools.as_deref().unwrap_or_default();
        let (spaces, others): (Vec<_>, Vec<_>) = tools.iter().partition(|tool| tool["type"] == "namespace");
        if others.iter().any(|tool| tool["name"] == name) {
            return None;
        }
        let matching = spaces.into_iter().filter_map(|space| {
            Some((space, name.strip_prefix(space["name"].as_str()?)?.strip_prefix('.')?))
        });
        matching.min_by_key(|(_, own)| own.len())
    }

    /// Returns the item of a call. A tool of a namespace gets the namespace and its own name back.
    pub(super) fn call(&self, id: &str, call: &WholeToolCall, status: ResponseStatus) -> OutputItem {
        let WholeToolCall { id: call_id, name, arguments } = call.clone();
        let id = id.to_owned();
        let is_custom = self.is_custom(&name);
        let (namespace, name) = match self.namespace_of(&name) {
            Some((space, own)) => (space["name"].as_str().map(str::to_owned), own.to_owned()),
            None => (None, name),
        };
        if is_custom {
            let input = custom_tools::input(&arguments);
            return OutputItem::CustomToolCall { id, call_id, name, namespace, input, status };
        }
        OutputItem::FunctionCall { id, call_id, name, namespace, arguments, status }
    }

    /// Returns true if the request asked for a summary of the reasoning.
    pub(super) fn wants_summary(&self) -> bool {
        self.reasoning.as_ref().is_some_and(|reasoning| !reasoning["summary"].is_null())
    }

    /// Returns the item of reasoning with this text.
    pub(super) fn reasoning(&self, id: &str, text: &str) -> OutputItem {
        let summary = self.wants_summary().then(|| SummaryPart::text(text));
        OutputItem::Reasoning {
            id: id.to_owned(),
            summary: summary.into_iter().collect(),
            content: vec![ReasoningPart::text(text)],
        }
    }

    /// Returns true if the response is stored.
    pub(super) fn is_stored(&self) -> bool {
        self.store != Some(false)
    }
}

/// Returns true if a custom tool has this name.
fn has_custom(tools: &[Value], name: &str) -> bool {
    tools.iter().any(|tool| tool["type"] == CUSTOM && tool["name"] == name)
}

#[cfg(test)]
mod tests {
    use super::{super::history::to_messages, *};

    #[test]
    fn the_sampling_of_the_answer_completes_the_settings() {
        let mut settings = serde_json::from_value::<ResponseSettings>(json!({"top_p": 0.5})).unwrap();
        settings.add_sampling(UsedSampling { temperature: 0.2, top_p: 0.9 });
        let written = serde_json::to_value(settings.with_defaults()).unwrap();
        assert_eq!([&written["temperature"], &written["top_p"]], [&json!(0.2), &json!(0.5)]);
    }

    #[test]
    fn functions_of_namespaces_keep_their_names() {
        let tools = json!([
            {"type": "namespace", "name": "s", "tools": [{"type": "custom", "name": "p"}]},
            {"type": "function", "name": "t.w"},
            {"type": "namespace", "name": "t"},
            {"type": "namespace", "name": "s.u"},
        ]);
        let settings: ResponseSettings = serde_json::from_value(json!({"tools": tools})).unwrap();
        let check = |name: &str, expect: [Value; 2]| {
            let call =
                WholeToolCall { id: "c".to_owned(), name: name.to_owned(), arguments: "{}".to_owned() };
            let item = settings.call("i", &call, ResponseStatus::Completed);
            let found = serde_json::to_value(&item).unwrap();
            assert_eq!([&found["namespace"], &found["name"]], [&expect[0], &expect[1]]);
            // In the next turn, the model sees the name that it wrote.
            assert_eq!(to_messages([item.to_history()])[0].tool_calls[0].function.name, name);
        };
        check("s.w", [json!("s"), json!("w")]);
        check("s.p", [json!("s"), json!("p")]);
        check("s.u.w", [json!("s.u"), json!("w")]);
        assert!(settings.is_custom("s.p") && !settings.is_custom("p") && !settings.is_custom("s.w"));
        check("t.w", [Value::Null, json!("t.w")]);
        check("s", [Value::Null, json!("s")]);
    }

    #[test]
    fn calls_of_custom_tools_have_an_input() {
        let tools = json!([{"type": "custom", "name": "patch"}, {"type": "function", "name": "f"}]);
        let settings: ResponseSettings = serde_json::from_value(json!({"tools": tools})).unwrap();
        let item = |name: &str| {
            let arguments = json!({"input": "a\nb"}).to_string();
            let call = WholeToolCall { id: "c".to_owned(), name: name.to_owned(), arguments };
            settings.call("i", &call, ResponseStatus::Completed)
        };
        let found = serde_json::to_value(item("patch")).unwrap();
        assert_eq!((&found["type"], &found["input"]), (&json!("custom_tool_call"), &json!("a\nb")));
        assert_eq!(serde_json::to_value(item("f")).unwrap()["type"], "function_call");
        // In the next turn, the model sees the arguments that it wrote.
        let again = to_messages([item("patch").to_history()]);
        assert_eq!(again[0].tool_calls[0].function.arguments, json!({"input": "a\nb"}));
    }
}
