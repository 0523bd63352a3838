//! The body of a request, and its translation to the gateway's.

use narthex_gateway::request::{
    CallLimit, ChatRequest, Content, ExactJson, FunctionCall, GenerateOptions, Grammar, HistoryOverflow,
    Message, ReadingSettings, ReasoningSettings, RequestGrammar, Role, Thinking, Tool, ToolCall, ToolChoice,
    ToolSettings,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::blocks::{Block, Blocks, ExactBlocks};
use crate::{
    error::ApiError,
    protocol::{
        body,
        ignored::IgnoredParameters,
        reasoning::{Effort, ThinkingSettings},
        shared_fields::SharedFields,
        tools::{TOOLS, WireFunction, call_limit},
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct MessagesBody {
    pub(super) model: String,
    messages: Vec<WireTurn>,
    system: Option<Blocks>,
    #[schemars(range(min = 1))]
    max_tokens: Option<usize>,
    stop_sequences: Option<Vec<String>>,
    pub(super) stream: Option<bool>,
    tools: Option<Vec<ToolDefinition>>,
    #[serde(default, deserialize_with = "body::filled")]
    tool_choice: Option<TurnChoice>,
    /// Same field as in OpenAI's API.
    parallel_tool_calls: Option<bool>,
    #[serde(default, deserialize_with = "body::filled")]
    thinking: Option<ThinkingSettings>,
    output_config: Option<OutputConfig>,
    /// Earlier place of `output_config.format`.
    #[serde(default, deserialize_with = "body::filled")]
    output_format: Option<OutputFormat>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct OutputConfig {
    #[serde(default, deserialize_with = "body::filled")]
    format: Option<OutputFormat>,
    effort: Option<Effort>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum OutputFormat {
    JsonSchema { schema: Value },
}

#[derive(Debug, Deserialize, JsonSchema)]
struct WireTurn {
    role: TurnRole,
    content: Blocks,
}

/// The JSON of a turn's content.
#[derive(Debug, Deserialize)]
struct ExactTurn<'a> {
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum TurnRole {
    User,
    Assistant,
    System,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ToolDefinition {
    /// Type of a tool that Anthropic defines.
    r#type: Option<String>,
    /// Tools of MCP servers have none.
    name: Option<String>,
    description: Option<String>,
    #[schemars(with = "Option<Value>")]
    input_schema: Option<ExactJson>,
    strict: Option<bool>,
}

/// `tool_choice`; a type alone is as in OpenAI's API.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected an object with a type of auto, any, tool or none")]
enum TurnChoice {
    Mode(ChoiceType),
    Settings { r#type: ChoiceType, name: Option<String>, disable_parallel_tool_use: Option<bool> },
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ChoiceType {
    Auto,
    #[serde(alias = "required")]
    Any,
    Tool,
    None,
}

impl WireTurn {
    /// Appends the messages of a turn: the results of tools, then the turn's text and calls. Adds the blocks of tools
    /// on Anthropic's servers, whose results are encrypted, to `ignored`.
    fn add_to(
        self,
        messages: &mut Vec<Message>,
        index: usize,
        ignored: &mut IgnoredParameters,
    ) -> Result<(), ApiError> {
        let path = format!("messages[{index}].content");
        let blocks = match self.content {
            Blocks::Text(text) => vec![Block::Text { text }],
            Blocks::List(blocks) => blocks,
        };
        let role = match self.role {
            TurnRole::User => Role::User,
            TurnRole::Assistant => Role::Assistant,
            TurnRole::System => Role::System,
        };

        let mut content = Content::default();
        let mut tool_calls = Vec::new();
        let mut reasoning = Vec::new();
        let mut has_results = false;
        let mut has_parts = false;
        for (number, block) in blocks.into_iter().enumerate() {
            if block.wants_citations() {
                ignored.push("document.citations");
            }
            match block {
                Block::ToolUse { id, name, input } => {
                    let function = FunctionCall { name, arguments: input };
                    tool_calls.push(ToolCall { id: Some(id), function });
                }
                Block::ToolResult { tool_use_id, content, is_error } => {
                    let result = content.map(|content| content.into_result(&path)).transpose()?;
                    let mut result = result.unwrap_or_default();
                    if is_error == Some(true) {
                        result = error_content(result);
                    }
                    let result = Message::new(Role::Tool, result);
                    messages.push(Message { tool_call_id: Some(tool_use_id), ..result });
                    has_results = true;
                }
                // The model's template keeps or drops earlier reasoning.
                Block::Thinking { thinking } => reasoning.push(thinking),
                Block::RedactedThinking {} => {}
                Block::ServerToolUse {} => ignored.push("server_tool_use"),
                Block::WebSearchToolResult {} => ignored.push("web_search_tool_result"),
                Block::WebFetchToolResult {} => ignored.push("web_fetch_tool_result"),
                Block::CodeExecutionToolResult {}
                | Block::BashCodeExecutionToolResult {}
                | Block::TextEditorCodeExecutionToolResult {} => ignored.push("code_execution_tool_result"),
                Block::ToolSearchToolResult {} => ignored.push("tool_search_tool_result"),
                Block::McpToolUse {} => ignored.push("mcp_tool_use"),
                Block::McpToolResult {} => ignored.push("mcp_tool_result"),
                Block::ContainerUpload {} => ignored.push("container_upload"),
                Block::Unknown => ignored.push("messages"),
                other => {
                    let part = other.into_part(role, &format!("{path}[{number}]")).transpose()?;
                    has_parts |= part.is_some();
                    content.extend(part);
                }
            }
        }

        if has_parts || !tool_calls.is_empty() || !has_results {
            let reasoning_content = (!reasoning.is_empty()).then(|| reasoning.join("\n"));
            messages.push(Message { tool_calls, reasoning_content, ..Message::new(role, content) });
        }
        Ok(())
    }
}

/// Returns the result of a call that failed. Templates have no place for this fact other than the text.
fn error_content(content: Content) -> Content {
    let text = content.text();
    if ["error", "Error", "ERROR"].iter().any(|word| text.contains(word)) {
        return content;
    }
    let mut error = Content::from("Error: ");
    error.append("", content);
    error
}

/// Types of tools that run on Anthropic's servers, or whose form only Anthropic's models know; versions have a date after
/// them. They are ignored, as if the model did not call them.
const HOSTED_TOOLS: [&str; 9] = [
    "web_search",
    "web_fetch",
    "code_execution",
    "tool_search_tool",
    "bash",
    "text_editor",
    "computer",
    "memory",
    "mcp_toolset",
];

impl MessagesBody {
    /// Returns the names of the given parameters of reasoning.
    pub(super) fn reasoning_parameters(&self) -> Vec<&'static str> {
        let effort = self.output_config.as_ref().and_then(|config| config.effort);
        let given = [("thinking", self.thinking.is_some()), ("output_config.effort", effort.is_some())];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect()
    }

    /// Restores the digits of integers beyond 64 bits in the inputs of calls. `messages` is the JSON of the messages.
    pub(super) fn restore_digits(&mut self, messages: &str) {
        if !ExactJson::may_be_inexact(messages) {
            return;
        }
        let turns: Vec<ExactTurn<'_>> = serde_json::from_str(messages).unwrap_or_default();
        for (turn, exact) in self.messages.iter_mut().zip(turns) {
            // A text in place of the blocks has no calls.
            if let (Blocks::List(blocks), Ok(exact)) =
                (&mut turn.content, serde_json::from_str::<ExactBlocks>(exact.content.get()))
            {
                exact.restore(blocks);
            }
        }
    }

    /// Returns the gateway's request, and adds the parts that it omits to `ignored`.
    pub(super) fn into_request(
        self,
        shared: SharedFields,
        ignored: &mut IgnoredParameters,
    ) -> Result<ChatRequest, ApiError> {
        let mut messages = Vec::new();
        if let Some(system) = self.system {
            messages.push(Message::new(Role::System, system.into_content(Role::System, "system")?));
        }
        for (index, turn) in self.messages.into_iter().enumerate() {
            turn.add_to(&mut messages, index, ignored)?;
        }

        let options = shared.sampling.options()?;
        let (format, effort) =
            self.output_config.map_or((None, None), |config| (config.format, config.effort));
        let format = format.map(|format| (format, "output_config.format"));
        let format = format.or(self.output_format.map(|format| (format, "output_format")));
        let format = format.map(|(OutputFormat::JsonSchema { schema }, field)| RequestGrammar {
            grammar: Grammar::JsonSchema(schema),
            field,
        });
        let options = GenerateOptions {
            max_tokens: self.max_tokens.or(options.max_tokens),
            stop: self.stop_sequences.unwrap_or(options.stop),
            grammar: shared.grammar.grammar(format)?,
            ..options
        };

        let mut tools = Vec::new();
        for (index, tool) in self.tools.unwrap_or_default().into_iter().enumerate() {
            match tool.r#type.as_deref() {
                None | Some("custom") => tools.push(tool.into_tool(index)?),
                // A tool of a wrong type is a mistake of the client.
                Some(kind) if tool.input_schema.is_some() => {
                    let path = format!("tools[{index}]");
                    let message = format!(
                        "{path}: expected the type \"custom\" for a tool with an input_schema, found {kind:?}"
                    );
                    return Err(ApiError::unsupported_as(&path, message));
                }
                Some(kind) => {
                    let hosted = HOSTED_TOOLS.into_iter().find(|hosted| kind.starts_with(hosted));
                    ignored.push(hosted.unwrap_or(TOOLS));
                }
            }
        }

        let is_single = self.tool_choice.as_ref().is_some_and(TurnChoice::disables_parallel_calls);
        let calls = if is_single { CallLimit::One } else { call_limit(self.parallel_tool_calls) };
        let choice = self.tool_choice.map_or(Ok(ToolChoice::Auto), TurnChoice::into_choice)?;
        // Reasoning is off unless a request asks for it.
        let is_asked = self.thinking.is_some() || effort.is_some() || shared.reasoning.has_settings();
        let mut own = reasoning(self.thinking, effort);
        if !is_asked {
            own.thinking = Thinking::Off;
        }

        let reasoning = shared.reasoning.settings_after(own);
        let tools = ToolSettings { tools, choice, calls };
        let overflow = HistoryOverflow::Refuse;
        Ok(ChatRequest { messages, tools, reasoning, overflow, reading: ReadingSettings::default(), options })
    }
}

/// Returns the gateway's settings. The effort limits reasoning that has no budget of its own.
fn reasoning(thinking: Option<ThinkingSettings>, effort: Option<Effort>) -> ReasoningSettings {
    let of_effort = effort.map_or_else(ReasoningSettings::default, Effort::settings);
    let own = thinking.map_or_else(ReasoningSettings::default, ThinkingSettings::settings);
    ReasoningSettings { thinking: own.thinking, budget: own.budget.or(of_effort.budget), ..of_effort }
}

impl ToolDefinition {
    /// Converts the tool for the gateway. `index` is its index for errors.
    fn into_tool(self, index: usize) -> Result<Tool, ApiError> {
        let function = WireFunction {
            name: self.name.ok_or_else(|| ApiError::required(&format!("tools[{index}].name")))?,
            description: self.description,
            parameters: self.input_schema,
            strict: self.strict,
        };
        Ok(function.into_tool(format!("tools[{index}].input_schema")))
    }
}

impl TurnChoice {
    fn disables_parallel_calls(&self) -> bool {
        matches!(self, Self::Settings { disable_parallel_tool_use: Some(true), .. })
    }

    fn into_choice(self) -> Result<ToolChoice, ApiError> {
        let (choice, name) = match self {
            Self::Mode(choice) => (choice, None),
            Self::Settings { r#type, name, .. } => (r#type, name),
        };
        match (choice, name) {
            (ChoiceType::Auto, _) => Ok(ToolChoice::Auto),
            (ChoiceType::Any, _) => Ok(ToolChoice::Required),
            (ChoiceType::None, _) => Ok(ToolChoice::None),
            (ChoiceType::Tool, Some(name)) => Ok(ToolChoice::Function(name)),
            (ChoiceType::Tool, None) => {
                Err(ApiError::bad_request("tool_choice.name", "tool_choice of type tool needs a name"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_gateway::request::Part;
    use serde_json::json;

    use super::*;

    fn body(fields: Value) -> MessagesBody {
        let mut body =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        serde_json::from_value(body).unwrap()
    }

    fn request(fields: Value) -> ChatRequest {
        body(fields).into_request(SharedFields::default(), &mut IgnoredParameters::default()).unwrap()
    }

    #[test]
    fn tools_that_anthropic_defines_are_ignored_by_name() {
        let own = json!({"type": "custom", "name": "w", "input_schema": {"type": "object"}});
        let search = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 3});
        let shell = json!({"type": "bash_20250124", "name": "bash"});
        let mcp = json!({"type": "mcp_toolset", "mcp_server_name": "a"});
        let newer = json!({"type": "of_tomorrow", "name": "a"});
        let mut ignored = IgnoredParameters::default();
        let read = body(json!({"tools": [search, own, shell, mcp, newer]}))
            .into_request(SharedFields::default(), &mut ignored)
            .unwrap();
        let expect = ["web_search", "bash", "mcp_toolset", "tools"];
        assert_eq!((read.tools.tools.len(), ignored.names()), (1, &expect[..]));
        let mistaken = json!({"type": "costum", "name": "w", "input_schema": {"type": "object"}});
        let refused = body(json!({"tools": [own, mistaken]}))
            .into_request(SharedFields::default(), &mut ignored)
            .unwrap_err()
            .body();
        assert_eq!(refused["error"]["param"], "tools[1]", "{refused}");
    }

    #[test]
    fn schemas_and_inputs_keep_the_digits_of_large_integers() {
        let messages = r#"[{"role":"user","content":"12345678901234567890123"},{"role":"assistant","content":
            [{"type":"text","text":"a"},{"type":"tool_use","id":"c","name":"w","input":{"a":18446744073709551617}}]}]"#;
        let tools = r#"[{"name":"w","input_schema":{"maximum":18446744073709551617}}]"#;
        let text = format!(r#"{{"model":"m","messages":{messages},"tools":{tools}}}"#);
        let mut body: MessagesBody = serde_json::from_str(&text).unwrap();
        body.restore_digits(messages);
        let read = body.into_request(SharedFields::default(), &mut IgnoredParameters::default()).unwrap();
        let input = read.messages[1].tool_calls[0].function.arguments.to_string();
        assert_eq!(input, r#"{"a":18446744073709551617}"#);
        assert_eq!(read.tools.tools[0].parameters.to_string(), r#"{"maximum":18446744073709551617}"#);
    }

    #[test]
    fn the_effort_limits_reasoning_without_a_budget() {
        let check = |fields: Value, thinking, budget| {
            let found = request(fields.clone()).reasoning;
            assert_eq!((found.thinking, found.budget), (thinking, budget), "{fields}");
        };
        check(json!({}), Thinking::Off, None);
        check(json!({"thinking": {}}), Thinking::Off, None);
        check(json!({"thinking": {"type": "adaptive"}}), Thinking::Template, None);
        check(json!({"thinking": {"type": "enabled", "budget_tokens": 7}}), Thinking::On, Some(7));
        let low = json!({"effort": "low"});
        check(json!({"output_config": low}), Thinking::Template, Some(1024));
        check(json!({"output_config": low, "thinking": {"type": "disabled"}}), Thinking::Off, Some(1024));
        let both = json!({"output_config": low, "thinking": {"type": "enabled", "budget_tokens": 7}});
        assert_eq!(body(both.clone()).reasoning_parameters(), ["thinking", "output_config.effort"]);
        check(both, Thinking::On, Some(7));
        check(json!({"output_config": {"effort": "max"}}), Thinking::Template, None);
    }

    #[test]
    fn turns_with_tools_become_messages() {
        let read = request(json!({
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "…", "signature": "s"},
                    {"type": "tool_use", "id": "t1", "name": "w", "input": {"city": "Rome"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "12"}]},
                    {"type": "text", "text": "And?"},
                ]},
            ],
            "tools": [{"name": "w", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        }));
        let roles: Vec<Role> = read.messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::Tool, Role::User]);
        assert_eq!(read.messages[2].tool_calls[0].function.arguments, json!({"city": "Rome"}));
        assert_eq!(
            (&*read.messages[3].content.text(), read.messages[3].tool_call_id.as_deref()),
            ("12", Some("t1"))
        );
        assert_eq!((&read.tools.choice, read.tools.calls), (&ToolChoice::Required, CallLimit::One));
        assert_eq!(read.options.max_tokens, Some(9));
    }

    #[test]
    fn failed_calls_are_told_in_their_results() {
        let check = |content: Value, expect: &str| {
            let result =
                json!({"type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": content});
            let read = request(json!({"messages": [{"role": "user", "content": [result]}]}));
            assert_eq!(read.messages[0].content, expect);
        };
        check(json!("no such file"), "Error: no such file");
        check(json!([{"type": "text", "text": "Error: no such file"}]), "Error: no such file");
        check(Value::Null, "Error: ");
    }

    #[test]
    fn images_in_the_results_of_tools_become_notes() {
        let image =
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}});
        let document = json!({"type": "document", "source": {"type": "base64", "data": "AA"}});
        let text = json!({"type": "text", "text": "A cat."});
        let result = |content: Value| {
            let result = json!({"type": "tool_result", "tool_use_id": "t1", "content": content});
            body(json!({"messages": [{"role": "user", "content": [result]}]}))
                .into_request(SharedFields::default(), &mut IgnoredParameters::default())
        };
        let read = result(json!([text, image, document])).unwrap();
        assert_eq!(read.messages[0].content.text(), "A cat.\n[document omitted: this model reads text]");
        assert!(matches!(read.messages[0].content.parts(), [_, Part::Media(_), _]));
        let file = json!({"type": "image", "source": {"type": "url", "url": "file:///a.png"}});
        let read = result(json!([file, {"type": "image"}])).unwrap();
        let note = "[image omitted: this model reads text]";
        assert_eq!(read.messages[0].content, &*format!("{note}\n{note}"));
        assert!(result(json!([{"type": "video"}])).is_err());
        let found = json!({"type": "search_result", "title": "Cats", "source": "a.md", "content": [text]});
        let read = result(json!([found, {"type": "tool_reference", "tool_name": "f"}])).unwrap();
        assert_eq!(read.messages[0].content, "Cats\na.md\nA cat.\nf");
    }

    #[test]
    fn images_keep_their_places_and_errors_name_theirs() {
        let read = |source: Value| {
            let text = json!({"type": "text", "text": "What is it?"});
            let content = json!([text, {"type": "image", "source": source}, text]);
            body(json!({"messages": [{"role": "user", "content": content}]}))
                .into_request(SharedFields::default(), &mut IgnoredParameters::default())
        };
        let png = json!({"type": "base64", "media_type": "image/png", "data": "iVBORw=="});
        let content = read(png).unwrap().messages.remove(0).content;
        let [Part::Text { .. }, Part::Media(media), Part::Text { .. }] = content.parts() else {
            panic!("{content:?}")
        };
        assert_eq!((media.media_type(), media.bytes().len()), (Some("image/png"), 4));
        let url = json!({"type": "url", "url": "data:image/png;base64,iVBORw=="});
        assert_eq!(read(url).unwrap().messages[0].content, content);
        let address = json!({"type": "url", "url": "https://example.org/a.png"});
        assert!(matches!(read(address).unwrap().messages[0].content.parts()[1], Part::Remote(_)));

        let check = |source: Value, param: &str| {
            let error = read(source).unwrap_err().body();
            assert_eq!(error["error"]["param"], format!("messages[0].content[1].source{param}"), "{error}");
        };
        check(json!({"type": "base64", "media_type": "image/png", "data": "?"}), ".data");
        check(json!({"type": "base64", "media_type": "text/plain", "data": "AAAA"}), ".data");
        check(json!({"type": "url", "url": "a.png"}), ".url");
        check(json!({"type": "file", "file_id": "file_1"}), "");
    }

    #[test]
    fn documents_with_a_text_are_read() {
        let mut ignored = IgnoredParameters::default();
        let mut document = |source: Value, enabled: Option<bool>| {
            let citations = json!({"enabled": enabled});
            let document = json!({"type": "document", "title": "Notes", "context": "Of May.", "source": source, "citations": citations});
            let question = json!({"type": "text", "text": "Why?"});
            body(json!({"messages": [{"role": "user", "content": [document, question]}]}))
                .into_request(SharedFields::default(), &mut ignored)
        };
        let plain = json!({"type": "text", "media_type": "text/plain", "data": "A cat."});
        let parts = json!({"type": "content", "content": [{"type": "text", "text": "A cat."}]});
        for (source, enabled) in [(plain, Some(true)), (parts, None)] {
            assert_eq!(
                document(source, enabled).unwrap().messages[0].content,
                "Notes\nOf May.\nA cat.\nWhy?"
            );
        }
        let refused =
            document(json!({"type": "base64", "media_type": "application/pdf", "data": "AA"}), None);
        assert_eq!(refused.unwrap_err().body()["error"]["param"], "messages[0].content[0]");
        assert_eq!(ignored.names(), ["document.citations"]);
    }

    #[test]
    fn blocks_of_anthropic_s_tools_are_ignored() {
        let turn = json!([
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
            {"type": "mcp_tool_use", "id": "m1", "name": "w", "server_name": "s", "input": {}},
            {"type": "of_tomorrow", "content": {"a": 1}},
            {"type": "text", "text": "Warm."},
        ]);
        let mut ignored = IgnoredParameters::default();
        let read = body(json!({"messages": [{"role": "assistant", "content": turn}]}))
            .into_request(SharedFields::default(), &mut ignored)
            .unwrap();
        assert_eq!(read.messages[0].content, "Warm.");
        assert_eq!(
            ignored.names(),
            ["server_tool_use", "web_search_tool_result", "mcp_tool_use", "messages"]
        );
    }

    #[test]
    fn the_schema_of_the_answer_has_two_places() {
        let format = json!({"type": "json_schema", "schema": {"type": "object"}});
        for fields in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
            assert_eq!(request(fields).options.grammar.unwrap().grammar, Grammar::json_object());
        }
    }
}
