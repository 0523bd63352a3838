//! Reasoning before an answer.

use narthex_text::template::GenerationPrompt;
use serde_json::{Map, Value};

/// Settings of the reasoning before an answer. Models that do not reason ignore them.
///
/// ```
/// use narthex_gateway::request::{ReasoningSettings, Thinking};
///
/// let reasoning =
///     ReasoningSettings { thinking: Thinking::On, budget: Some(256), ..ReasoningSettings::default() };
/// assert!(reasoning.variables.is_empty());
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReasoningSettings {
    /// Choice between reasoning and none.
    pub thinking: Thinking,
    /// Maximum number of tokens of reasoning; `None` for no limit. At the limit, the answer begins.
    pub budget: Option<usize>,
    /// Further variables of the chat template. With `add_generation_prompt: false`, the prompt ends with the last
    /// message, without the start of the answer. With `continue_final_message: true`, the answer continues the last
    /// message, a text of the assistant.
    pub variables: Map<String, Value>,
}

/// Choice between reasoning and none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Thinking {
    /// The chat template decides.
    #[default]
    Template,
    /// The model reasons.
    On,
    /// The model answers at once.
    Off,
}

impl ReasoningSettings {
    /// Variable of an answer that continues the last message. Templates do not receive it.
    pub const CONTINUE: &str = "continue_final_message";

    /// Returns the variables of the chat template. Templates use one of two names for the reasoning switch.
    pub(crate) fn template_variables(&self) -> Map<String, Value> {
        let mut variables = self.variables.clone();
        let is_on = match self.thinking {
            Thinking::Template => return variables,
            Thinking::On => true,
            Thinking::Off => false,
        };
        for name in ["enable_thinking", "thinking"] {
            variables.entry(name).or_insert(Value::Bool(is_on));
        }
        variables
    }

    /// Returns the end of the prompt.
    pub(crate) fn generation_prompt(&self) -> GenerationPrompt {
        match self.variables.get("add_generation_prompt") {
            Some(Value::Bool(false)) => GenerationPrompt::Leave,
            _ => GenerationPrompt::Add,
        }
    }

    /// Returns the maximum number of tokens of reasoning; 0 if reasoning is off.
    pub(crate) fn limit(&self) -> Option<usize> {
        if self.thinking == Thinking::Off { Some(0) } else { self.budget }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_see_the_choice_unless_the_client_sets_its_variables() {
        let check = |thinking, variables: Value, expect: Value, limit| {
            let variables = variables.as_object().unwrap().clone();
            let settings = ReasoningSettings { thinking, budget: Some(9), variables };
            assert_eq!(Value::from(settings.template_variables()), expect);
            assert_eq!(settings.limit(), limit);
        };
        check(Thinking::Template, json!({"a": 1}), json!({"a": 1}), Some(9));
        check(Thinking::On, json!({}), json!({"enable_thinking": true, "thinking": true}), Some(9));
        let leaves = |variables: Value| {
            let variables = variables.as_object().unwrap().clone();
            let settings = ReasoningSettings { variables, ..ReasoningSettings::default() };
            settings.generation_prompt() == GenerationPrompt::Leave
        };
        assert!(leaves(json!({"add_generation_prompt": false})));
        assert!(!leaves(json!({"add_generation_prompt": true})) && !leaves(json!({})));
        let off = json!({"thinking": "no", "enable_thinking": false});
        check(Thinking::Off, json!({"thinking": "no"}), off, Some(0));
    }
}
