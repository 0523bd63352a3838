//! Parameters of reasoning.

use narthex_gateway::request::{ReasoningSettings, Thinking};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Parameters of reasoning and of the chat template in OpenAI's API and in the APIs of other local servers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct ReasoningOptions {
    reasoning_effort: Option<Effort>,
    enable_thinking: Option<bool>,
    thinking_budget: Option<i64>,
    thinking_token_budget: Option<i64>,
    thinking_budget_tokens: Option<i64>,
    reasoning_budget: Option<i64>,
    chat_template_kwargs: Option<Map<String, Value>>,
    /// `false`: the prompt ends with the last message, without the start of the answer.
    add_generation_prompt: Option<bool>,
    /// `true`: the answer continues the last message, a text of the assistant.
    continue_final_message: Option<bool>,
}

/// `reasoning_effort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    #[serde(alias = "max")]
    Xhigh,
}

impl Effort {
    /// Returns the budget in tokens: the one that Gemini's API assigns to each of OpenAI's levels.
    fn budget(self) -> Option<usize> {
        match self {
            Self::None => Some(0),
            Self::Minimal | Self::Low => Some(1024),
            Self::Medium => Some(8192),
            Self::High => Some(24_576),
            Self::Xhigh => None,
        }
    }

    /// Returns the gateway's settings. Templates that support levels receive this one.
    pub(crate) fn settings(self) -> ReasoningSettings {
        let thinking = if self == Self::None { Thinking::Off } else { Thinking::On };
        let variables = Map::from_iter([("reasoning_effort".to_owned(), json!(self))]);
        ReasoningSettings { thinking, budget: self.budget(), variables }
    }
}

/// `thinking` in Anthropic's API, which some clients of chat completions send too.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub(crate) struct ThinkingSettings {
    r#type: Option<ThinkingType>,
    budget_tokens: Option<usize>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ThinkingType {
    Enabled,
    #[serde(alias = "between_tools")]
    Adaptive,
    Disabled,
}

impl ThinkingSettings {
    /// Returns the gateway's settings.
    pub(crate) fn settings(self) -> ReasoningSettings {
        let thinking = match self.r#type {
            Some(ThinkingType::Enabled) => Thinking::On,
            Some(ThinkingType::Disabled) => Thinking::Off,
            Some(ThinkingType::Adaptive) | None => Thinking::Template,
        };
        ReasoningSettings { thinking, budget: self.budget_tokens, ..ReasoningSettings::default() }
    }
}

/// `reasoning` in chat completions, as clients of several services send it.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub(crate) struct ReasoningObject {
    effort: Option<Effort>,
    max_tokens: Option<usize>,
    enabled: Option<bool>,
}

impl ReasoningObject {
    /// Returns the gateway's settings.
    pub(crate) fn settings(self) -> ReasoningSettings {
        let of_effort = self.effort.map_or_else(ReasoningSettings::default, Effort::settings);
        let thinking = match self.enabled {
            Some(true) => Thinking::On,
            Some(false) => Thinking::Off,
            None => of_effort.thinking,
        };
        ReasoningSettings { thinking, budget: self.max_tokens.or(of_effort.budget), ..of_effort }
    }
}

impl ReasoningOptions {
    /// Returns the names of the given parameters, which have no effect on a model that does not reason.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        let given = [
            ("reasoning_effort", self.reasoning_effort.is_some()),
            ("enable_thinking", self.enable_thinking.is_some()),
            ("thinking_budget", self.thinking_budget.is_some()),
            ("thinking_token_budget", self.thinking_token_budget.is_some()),
            ("thinking_budget_tokens", self.thinking_budget_tokens.is_some()),
            ("reasoning_budget", self.reasoning_budget.is_some()),
        ];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect()
    }

    /// Returns the budget, which has a name for each of several servers.
    fn budget(&self) -> Option<i64> {
        let names = [self.thinking_token_budget, self.thinking_budget_tokens, self.reasoning_budget];
        names.into_iter().fold(self.thinking_budget, Option::or)
    }

    /// Returns true if a parameter may switch reasoning on or off.
    pub(crate) fn has_settings(&self) -> bool {
        let has_variables = self.chat_template_kwargs.as_ref().is_some_and(|variables| !variables.is_empty());
        has_variables || !self.given().is_empty()
    }

    /// Returns the names of the given parameters, which have no effect on a text without a chat template.
    pub(crate) fn given_without_template(&self) -> Vec<&'static str> {
        let mut names = self.given();
        let has_variables = self.chat_template_kwargs.as_ref().is_some_and(|variables| !variables.is_empty());
        names.extend(has_variables.then_some("chat_template_kwargs"));
        names.extend(self.add_generation_prompt.map(|_| "add_generation_prompt"));
        names.extend(self.continue_final_message.map(|_| ReasoningSettings::CONTINUE));
        names
    }

    /// Returns the gateway's settings. Those of the protocol's own parameters take precedence, but the budget of an
    /// effort does not replace one in tokens.
    pub(crate) fn settings_after(self, own: ReasoningSettings) -> ReasoningSettings {
        let has_budget = self.budget().is_some();
        let mut settings = self.settings();
        settings.variables.extend(own.variables);
        if !has_budget {
            settings.budget = own.budget.or(settings.budget);
        }
        if own.thinking != Thinking::Template {
            settings.thinking = own.thinking;
        }
        settings
    }

    /// Returns the gateway's settings. A switch of the template takes precedence over the effort. A budget of -1 means
    /// no limit, as in other servers.
    pub(crate) fn settings(self) -> ReasoningSettings {
        let mut settings = self.reasoning_effort.map_or_else(ReasoningSettings::default, Effort::settings);
        if let Some(budget) = self.budget() {
            settings.budget = usize::try_from(budget).ok();
        }
        let variables = self.chat_template_kwargs.unwrap_or_default();
        let switch = variables.get("enable_thinking").or_else(|| variables.get("thinking"));
        match self.enable_thinking.or_else(|| switch.and_then(Value::as_bool)) {
            Some(true) => settings.thinking = Thinking::On,
            Some(false) => settings.thinking = Thinking::Off,
            None => {}
        }
        settings.variables.extend(variables);
        if let Some(adds) = self.add_generation_prompt {
            settings.variables.insert("add_generation_prompt".to_owned(), adds.into());
        }
        if let Some(continues) = self.continue_final_message {
            settings.variables.insert(ReasoningSettings::CONTINUE.to_owned(), continues.into());
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_other_services_are_read() {
        let thinking = |value: Value| {
            let found = serde_json::from_value::<ThinkingSettings>(value).unwrap().settings();
            (found.thinking, found.budget)
        };
        assert_eq!(thinking(json!({"type": "disabled"})), (Thinking::Off, None));
        assert_eq!(thinking(json!({"type": "enabled", "budget_tokens": 7})), (Thinking::On, Some(7)));
        let reasoning = |value: Value| {
            let found = serde_json::from_value::<ReasoningObject>(value).unwrap().settings();
            (found.thinking, found.budget)
        };
        assert_eq!(reasoning(json!({"effort": "none"})), (Thinking::Off, Some(0)));
        assert_eq!(reasoning(json!({"enabled": true, "max_tokens": 7})), (Thinking::On, Some(7)));
        assert_eq!(reasoning(json!({"effort": "low", "enabled": false})), (Thinking::Off, Some(1024)));
    }

    #[test]
    fn parameters_of_several_servers_mean_the_same() {
        let check = |body: Value, thinking, budget| {
            let settings = serde_json::from_value::<ReasoningOptions>(body.clone()).unwrap().settings();
            assert_eq!((settings.thinking, settings.budget), (thinking, budget), "{body}");
        };
        check(json!({}), Thinking::Template, None);
        check(json!({"reasoning_effort": "none"}), Thinking::Off, Some(0));
        check(json!({"reasoning_effort": "low"}), Thinking::On, Some(1024));
        check(json!({"reasoning_effort": "low", "thinking_budget": 7}), Thinking::On, Some(7));
        check(json!({"reasoning_budget": -1}), Thinking::Template, None);
        check(json!({"chat_template_kwargs": {"enable_thinking": false}}), Thinking::Off, None);
        check(json!({"enable_thinking": true, "thinking_token_budget": 3}), Thinking::On, Some(3));
        check(json!({"thinking_budget_tokens": 5}), Thinking::Template, Some(5));
        let read = |body: Value| serde_json::from_value::<ReasoningOptions>(body).unwrap();
        let shared = json!({"reasoning_effort": "low", "add_generation_prompt": false});
        let settings = read(shared.clone()).settings_after(Effort::None.settings());
        assert_eq!((settings.thinking, settings.budget), (Thinking::Off, Some(0)));
        let budget = read(json!({"thinking_budget": 6})).settings_after(Effort::High.settings()).budget;
        assert_eq!(budget, Some(6));
        assert_eq!(read(json!({"reasoning_budget": 6})).given(), ["reasoning_budget"]);
        let settings = read(shared).settings_after(ReasoningSettings::default());
        assert_eq!((settings.thinking, settings.budget), (Thinking::On, Some(1024)));
        assert_eq!(settings.variables["add_generation_prompt"], false);
        let settings = Effort::High.settings();
        assert_eq!(settings.variables["reasoning_effort"], "high");
        assert!(serde_json::from_value::<ReasoningOptions>(json!({"reasoning_effort": "much"})).is_err());
    }
}
