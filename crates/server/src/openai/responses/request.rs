//! The body of a request, and its translation to the gateway's.

use std::{fmt, marker::PhantomData};

use narthex_gateway::request::{
    Content, ExactJson, GenerateOptions, Grammar, Message, ReasoningSettings, RequestGrammar, Role, Tool,
    ToolChoice, ToolSettings,
};
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor, value::SeqAccessDeserializer},
};
use serde_json::Value;

use super::history::{HistoryItem, InputItem, full_name};
use crate::{
    error::ApiError,
    openai::messages::{WireContent, WirePart},
    protocol::{
        body,
        custom_tools::{self, CUSTOM, CustomFormat, CustomTool},
        ignored::IgnoredParameters,
        outline,
        reasoning::Effort,
        response_format::schema_grammar,
        shared_fields::SharedFields,
        text_or_list::{ListElement, TextOrList},
        tools::{ChoiceMode, NamedTool, TOOLS, WireFunction, allow, call_limit, hosted},
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ResponsesBody {
    pub(super) model: String,
    input: TextOrList<Item>,
    instructions: Option<String>,
    #[schemars(range(min = 1))]
    max_output_tokens: Option<usize>,
    pub(super) stream: Option<bool>,
    tools: Option<Vec<ResponseTool>>,
    #[serde(default, deserialize_with = "body::filled")]
    tool_choice: Option<ResponseChoice>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextSettings>,
    reasoning: Option<ReasoningEffort>,
    /// Additional parts of the answer. Only log-probabilities are supported.
    include: Option<Vec<String>>,
    #[schemars(range(max = 20))]
    top_logprobs: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ReasoningEffort {
    effort: Option<Effort>,
    summary: Option<Value>,
}

/// An item of the conversation; without a type it is a message.
#[derive(Debug, Deserialize, JsonSchema)]
struct Item {
    #[serde(default = "message_type")]
    r#type: String,
    id: Option<String>,
    #[schemars(with = "Option<String>")]
    role: Option<Role>,
    content: Option<WireContent>,
    /// Summary of reasoning.
    summary: Option<Vec<WirePart>>,
    call_id: Option<String>,
    name: Option<String>,
    /// Namespace of the called tool.
    namespace: Option<String>,
    #[schemars(with = "Option<String>")]
    arguments: Option<OrObject<String>>,
    /// Input of a custom tool.
    #[schemars(with = "Option<String>")]
    input: Option<OrObject<String>>,
    /// Command of a call of Codex's shell.
    action: Option<Value>,
    #[schemars(with = "Option<WireContent>")]
    output: Option<OrObject<WireContent>>,
}

/// A field that is an object in items of types that are ignored.
#[derive(Debug)]
enum OrObject<T> {
    Given(T),
    Object,
}

impl<T> OrObject<T> {
    /// Returns the value of a field at `path`.
    fn given(self, path: &str) -> Result<T, ApiError> {
        match self {
            Self::Given(value) => Ok(value),
            Self::Object => {
                let message = format!("{path}: expected a string or a list, found an object");
                Err(ApiError::bad_request(path.to_owned(), message))
            }
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrObject<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_any(OrObjectVisitor(PhantomData))
    }
}

struct OrObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OrObjectVisitor<T> {
    type Value = OrObject<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a list or an object")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        T::deserialize(text.into_deserializer()).map(OrObject::Given)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(list)).map(OrObject::Given)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(OrObject::Object)
    }
}

impl ListElement for Item {
    const EXPECTED: &'static str = "a string or a list of items";
}

fn message_type() -> String {
    "message".to_owned()
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ResponseTool {
    r#type: String,
    name: Option<String>,
    description: Option<String>,
    #[schemars(with = "Option<Value>")]
    parameters: Option<ExactJson>,
    strict: Option<bool>,
    /// Form of a custom tool's input.
    format: Option<CustomFormat>,
    /// Tools of a namespace.
    tools: Option<Vec<ResponseTool>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\", a function, a custom tool or allowed_tools"
)]
enum ResponseChoice {
    Mode(ChoiceMode),
    Function {
        name: String,
    },
    /// Some of the tools.
    Allowed {
        mode: ChoiceMode,
        tools: Vec<NamedTool>,
    },
    /// A tool that runs on OpenAI's servers.
    Hosted {
        r#type: HostedTool,
    },
}

#[derive(Debug, Deserialize, JsonSchema)]
struct TextSettings {
    #[serde(default, deserialize_with = "body::filled")]
    format: Option<TextFormat>,
    verbosity: Option<Value>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TextFormat {
    Text,
    JsonObject,
    JsonSchema {
        schema: Value,
        /// `false` leaves out the keywords that cannot be enforced, which are otherwise refused.
        strict: Option<bool>,
    },
}

impl Item {
    /// Returns true for the reference to an item of a stored response. Its type may be absent.
    fn is_reference(&self) -> bool {
        let is_bare = self.id.is_some() && self.role.is_none() && self.content.is_none();
        self.r#type == "item_reference" || (self.r#type == "message" && is_bare)
    }

    /// Returns the item; `None` for one that is not part of the conversation, whose type is added to `ignored`.
    fn into_input(
        self,
        index: usize,
        ignored: &mut IgnoredParameters,
    ) -> Result<Option<InputItem>, ApiError> {
        let path = format!("input[{index}]");
        let missing = |field: &str| {
            let path = format!("{path}.{field}");
            ApiError::required(&path)
        };
        if self.is_reference() {
            let id = self.id.ok_or_else(|| missing("id"))?;
            return Ok(Some(InputItem::Reference(id)));
        }

        let output = self.output.map_or_else(
            || Ok(Content::default()),
            |output| {
                let path = format!("{path}.output");
                output.given(&path)?.into_content(Role::Tool, &path)
            },
        );
        let item = match self.r#type.as_str() {
            "message" => {
                let role = self.role.ok_or_else(|| missing("role"))?;
                let content =
                    self.content.map(|content| content.into_content(role, &format!("{path}.content")));
                HistoryItem::Message(Message::new(role, content.transpose()?.unwrap_or_default()))
            }
            "function_call" => {
                let arguments = self.arguments.map(|arguments| arguments.given(&format!("{path}.arguments")));
                let arguments = outline::text_arguments(&arguments.transpose()?.unwrap_or_default());
                let name = self.name.ok_or_else(|| missing("name"))?;
                HistoryItem::call(self.call_id, full_name(self.namespace.as_deref(), name), arguments)
            }
            "custom_tool_call" => {
                let name = full_name(self.namespace.as_deref(), self.name.ok_or_else(|| missing("name"))?);
                let input = self.input.map(|input| input.given(&format!("{path}.input"))).transpose()?;
                HistoryItem::call(self.call_id, name, custom_tools::arguments(&input.unwrap_or_default()))
            }
            "local_shell_call" => {
                let action = self.action.unwrap_or_default();
                HistoryItem::call(self.call_id.or(self.id), LOCAL_SHELL.to_owned(), action.into())
            }
            "function_call_output" | "custom_tool_call_output" => HistoryItem::result(self.call_id, output?),
            "local_shell_call_output" => HistoryItem::result(self.call_id.or(self.id), output?),
            // The model's template keeps or drops earlier reasoning. Some clients return only the summary.
            "reasoning" => {
                let content = self.content.map(WireContent::into_reasoning).filter(|text| !text.is_empty());
                let summary = self.summary.map(|parts| WireContent::List(parts).into_reasoning());
                HistoryItem::Reasoning(content.or(summary).unwrap_or_default())
            }
            other => {
                let kind = HOSTED_ITEMS.into_iter().find(|kind| *kind == other);
                ignored.push(kind.unwrap_or("input"));
                return Ok(None);
            }
        };
        Ok(Some(InputItem::Given(item)))
    }
}

/// Types of items that the tools of OpenAI's servers write. Their results are not part of the conversation, so that the
/// items do not change the prompt. The header names other unknown items as `input`.
const HOSTED_ITEMS: [&str; 17] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "computer_call",
    "computer_call_output",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "tool_search_call",
    "tool_search_output",
    "compaction",
];

/// Value of `include` for the log-probabilities of the text.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Name of Codex's shell, whose calls are items of a type of their own.
const LOCAL_SHELL: &str = "local_shell";

/// Returns the error of a `tool_choice` that asks for such a tool.
fn cannot_call(name: &str) -> ApiError {
    let message = format!(
        "tool_choice: expected a function or a custom tool, found {name}, which runs on OpenAI's servers; send \"auto\""
    );
    ApiError::unsupported_as("tool_choice", message)
}

/// Type of a tool that runs on OpenAI's servers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
struct HostedTool(String);

impl TryFrom<String> for HostedTool {
    type Error = String;

    fn try_from(kind: String) -> Result<Self, String> {
        hosted(&kind)
            .map(|name| Self(name.to_owned()))
            .ok_or_else(|| format!("{kind:?} is not a tool of OpenAI's servers"))
    }
}

/// Conversation in a body, without earlier turns, and its options.
pub(super) struct InputRequest {
    /// Instructions, which are not part of the conversation.
    pub(super) instructions: Option<Message>,
    pub(super) input: Vec<InputItem>,
    pub(super) tools: ToolSettings,
    pub(super) reasoning: ReasoningSettings,
    /// Parameters of reasoning, which have no effect on a model that does not reason.
    pub(super) reasoning_parameters: Vec<&'static str>,
    pub(super) options: GenerateOptions,
}

impl ResponseTool {
    /// Adds the tool, or the tools of the namespace, to `tools`.
    fn add_to(self, tools: &mut Vec<Tool>, index: usize) -> Result<(), ApiError> {
        let path = format!("tools[{index}]");
        if self.r#type != "namespace" {
            tools.push(self.into_tool(path)?);
            return Ok(());
        }
        let Some(space) = self.name else { return Err(ApiError::required(&format!("{path}.name"))) };
        for (number, tool) in self.tools.unwrap_or_default().into_iter().enumerate() {
            let tool = tool.into_tool(format!("{path}.tools[{number}]"))?;
            tools.push(Tool { name: full_name(Some(&space), tool.name), ..tool });
        }
        Ok(())
    }

    fn into_tool(self, path: String) -> Result<Tool, ApiError> {
        if self.r#type == CUSTOM { self.into_custom_tool(path) } else { self.into_function(path) }
    }

    /// Returns a custom tool, whose input is a text, as a function.
    fn into_custom_tool(self, path: String) -> Result<Tool, ApiError> {
        let Some(name) = self.name else {
            let path = format!("{path}.name");
            return Err(ApiError::required(&path));
        };
        CustomTool { name, description: self.description, format: self.format }.into_tool(&path)
    }

    fn into_function(self, path: String) -> Result<Tool, ApiError> {
        let (Some(name), "function") = (self.name, self.r#type.as_str()) else {
            let message =
                format!("{path}: expected a tool of type \"function\" with a name, found {:?}", self.r#type);
            return Err(ApiError::unsupported_as(&path, message));
        };
        let function = WireFunction {
            name,
            description: self.description,
            parameters: self.parameters,
            strict: self.strict,
        };
        Ok(function.into_tool(format!("{path}.parameters")))
    }
}

/// Returns the number of alternatives with log-probabilities; `None` for no log-probabilities. Adds other values of
/// `include` to `ignored`.
fn logprobs(include: Vec<String>, top: Option<usize>, ignored: &mut IgnoredParameters) -> Option<usize> {
    if include.iter().any(|name| name != LOGPROBS) {
        ignored.push("include");
    }
    let top = top.filter(|top| *top > 0);
    if include.iter().any(|name| name == LOGPROBS) { Some(top.unwrap_or(0)) } else { top }
}

impl ResponsesBody {
    /// Returns the gateway's request, and adds the parts that it omits to `ignored`.
    pub(super) fn into_request(
        self,
        shared: SharedFields,
        ignored: &mut IgnoredParameters,
    ) -> Result<InputRequest, ApiError> {
        let mut input = Vec::new();
        match self.input {
            TextOrList::Text(text) => {
                input.push(InputItem::Given(HistoryItem::Message(Message::new(Role::User, text))));
            }
            TextOrList::List(items) => {
                for (index, item) in items.into_iter().enumerate() {
                    input.extend(item.into_input(index, ignored)?);
                }
            }
        }

        let mut tools = Vec::new();
        let mut hosted_tool = None;
        for (index, tool) in self.tools.unwrap_or_default().into_iter().enumerate() {
            // A function of a wrong type is a mistake of the client.
            let declares = tool.parameters.is_some();
            if declares || matches!(tool.r#type.as_str(), "function" | CUSTOM | "namespace") {
                tool.add_to(&mut tools, index)?;
            } else {
                let name = hosted(&tool.r#type).unwrap_or(TOOLS);
                hosted_tool = Some(name);
                ignored.push(name);
            }
        }

        let choice = match self.tool_choice {
            None => ToolChoice::Auto,
            Some(ResponseChoice::Hosted { r#type: HostedTool(name) }) => return Err(cannot_call(&name)),
            Some(ResponseChoice::Mode(mode)) => mode.into(),
            Some(ResponseChoice::Function { name }) => ToolChoice::Function(name),
            Some(ResponseChoice::Allowed { mode, tools: allowed }) => {
                allow(&mut tools, &allowed, "tool_choice.tools")?;
                mode.into()
            }
        };

        if let (ToolChoice::Required, true, Some(name)) = (&choice, tools.is_empty(), hosted_tool) {
            return Err(cannot_call(name));
        }
        let calls = call_limit(self.parallel_tool_calls);
        if self.text.as_ref().is_some_and(|text| text.verbosity.is_some()) {
            ignored.push("text.verbosity");
        }

        let format = match self.text.and_then(|text| text.format) {
            None | Some(TextFormat::Text) => None,
            Some(TextFormat::JsonObject) => Some(Grammar::json_object()),
            Some(TextFormat::JsonSchema { schema, strict }) => Some(schema_grammar(schema, strict)),
        };
        let logprobs = logprobs(self.include.unwrap_or_default(), self.top_logprobs, ignored);
        let format = format.map(|grammar| RequestGrammar { grammar, field: "text.format" });
        let grammar = shared.grammar.grammar(format)?;
        let options = shared.sampling.options()?;
        let max_tokens = self.max_output_tokens.or(options.max_tokens);
        let options = GenerateOptions { max_tokens, grammar, logprobs, ..options };
        let instructions = self.instructions.map(|text| Message::new(Role::System, text));
        let (effort, summary) =
            self.reasoning.map_or((None, None), |reasoning| (reasoning.effort, reasoning.summary));
        let given = [effort.map(|_| "reasoning.effort"), summary.map(|_| "reasoning.summary")];
        let reasoning_parameters = given.into_iter().flatten().chain(shared.reasoning.given()).collect();
        let reasoning = effort.map_or_else(ReasoningSettings::default, Effort::settings);
        let reasoning = shared.reasoning.settings_after(reasoning);
        let tools = ToolSettings { tools, choice, calls };
        Ok(InputRequest { instructions, input, tools, reasoning, reasoning_parameters, options })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use narthex_gateway::request::Strictness;
    use serde_json::json;

    use super::{
        super::history::{resolve, to_messages},
        *,
    };

    fn request(fields: Value) -> Result<InputRequest, ApiError> {
        let mut body = json!({"model": "m", "input": "Hi"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value::<ResponsesBody>(body)
            .unwrap()
            .into_request(SharedFields::default(), &mut IgnoredParameters::default())
    }

    fn history(items: Value) -> Vec<Message> {
        let input = request(json!({"input": items})).ok().unwrap().input;
        to_messages(resolve(input, |_| HashMap::new()).unwrap())
    }

    #[test]
    fn reasoning_is_read_from_its_content_or_its_summary() {
        let check = |item: Value, expect: Option<&str>| {
            let answer = json!({"role": "assistant", "content": "Warm."});
            let messages = history(json!([item, answer]));
            let reasoning = messages[0].reasoning_content.as_deref();
            assert_eq!((messages.len(), reasoning), (1, expect), "{item}: {messages:?}");
        };
        let content = json!([{"type": "reasoning_text", "text": "long"}]);
        let summary = json!([{"type": "summary_text", "text": "short"}]);
        check(json!({"type": "reasoning", "id": "rs_1", "summary": []}), None);
        check(json!({"type": "reasoning", "summary": summary}), Some("short"));
        check(json!({"type": "reasoning", "summary": summary, "content": content}), Some("long"));
        check(json!({"type": "reasoning", "summary": summary, "content": null}), Some("short"));
    }

    #[test]
    fn calls_of_codex_are_part_of_the_history() {
        let action = json!({"type": "exec", "command": ["ls", "-l"]});
        let shell = |id: &str| json!({"type": "local_shell_call", id: "c1", "action": action});
        let output = |kind: &str, id: &str| json!({"type": kind, id: "c1", "output": "a.txt"});
        let search =
            json!({"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "q"}});
        for (call, result) in [
            (shell("call_id"), output("function_call_output", "call_id")),
            (shell("id"), output("local_shell_call_output", "id")),
        ] {
            let mut ignored = IgnoredParameters::default();
            let body = json!({"model": "m", "input": [search, call, result]});
            let body = serde_json::from_value::<ResponsesBody>(body).unwrap();
            let read = body.into_request(SharedFields::default(), &mut ignored).ok().unwrap();
            let messages = to_messages(resolve(read.input, |_| HashMap::new()).unwrap());
            assert_eq!((messages.len(), ignored.names()), (2, &["web_search_call"][..]));
            let called = &messages[0].tool_calls[0];
            assert_eq!((called.id.as_deref(), called.function.name.as_str()), (Some("c1"), "local_shell"));
            assert_eq!(called.function.arguments, action);
            assert_eq!(messages[1].tool_call_id.as_deref(), Some("c1"));
        }
    }

    #[test]
    fn custom_tools_take_a_text() {
        let tool = json!({"type": "custom", "name": "patch", "description": "Edits."});
        let choice = json!({"type": "custom", "name": "patch"});
        let read = request(json!({"tools": [tool], "tool_choice": choice})).ok().unwrap();
        let found = &read.tools.tools[0];
        assert_eq!((found.name.as_str(), &found.parameters["required"]), ("patch", &json!(["input"])));
        assert_eq!(read.tools.choice, ToolChoice::Function("patch".to_owned()));
        let messages = history(json!([
            {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "a\nb"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        ]));
        assert_eq!(messages[0].tool_calls[0].function.arguments, json!({"input": "a\nb"}));
        assert_eq!(messages[1].tool_call_id.as_deref(), Some("c1"));
        let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: \"a\""});
        let tool = json!({"type": "custom", "name": "patch", "format": format});
        let read = request(json!({"tools": [tool]})).ok().unwrap();
        let text = read.tools.tools[0].text.as_ref().unwrap();
        assert_eq!((text.name.as_str(), &text.grammar), ("input", &Grammar::Lark("start: \"a\"".to_owned())));
    }

    #[test]
    fn log_probabilities_are_included_on_request() {
        let check = |fields: Value, logprobs: Option<usize>, names: &[&str]| {
            let mut body = json!({"model": "m", "input": "Hi"});
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let mut ignored = IgnoredParameters::default();
            let body: ResponsesBody = serde_json::from_value(body).unwrap();
            let read = body.into_request(SharedFields::default(), &mut ignored).ok().unwrap();
            assert_eq!((read.options.logprobs, ignored.names()), (logprobs, names), "{fields}");
        };
        check(json!({"top_logprobs": 0, "include": []}), None, &[]);
        check(json!({"include": ["reasoning.encrypted_content"]}), None, &["include"]);
        check(json!({"include": [LOGPROBS]}), Some(0), &[]);
        check(json!({"include": [LOGPROBS, "x"], "top_logprobs": 3}), Some(3), &["include"]);
        check(json!({"top_logprobs": 3}), Some(3), &[]);
    }

    #[test]
    fn allowed_tools_are_the_only_ones() {
        let tool = |name: &str| json!({"type": "function", "name": name});
        let choice = |names: &[&str]| {
            let allowed: Vec<Value> = names.iter().map(|name| tool(name)).collect();
            json!({"type": "allowed_tools", "mode": "required", "tools": allowed})
        };
        let read =
            |names: &[&str]| request(json!({"tools": [tool("a"), tool("b")], "tool_choice": choice(names)}));
        let tools = read(&["b"]).ok().unwrap().tools;
        assert_eq!((tools.tools.len(), tools.tools[0].name.as_str()), (1, "b"));
        assert_eq!(tools.choice, ToolChoice::Required);
        let error = read(&["b", "c"]).err().unwrap().body();
        assert_eq!(error["error"]["param"], "tool_choice.tools", "{error}");
    }

    #[test]
    fn hosted_tools_are_ignored_unless_a_choice_asks_for_them() {
        let function = json!({"type": "function", "name": "a"});
        let hosted = json!([{"type": "web_search"}, {"type": "mcp"}, {"type": "apply_patch"}, {"type": "of_tomorrow"}]);
        let tools = request(json!({"tools": hosted})).ok().unwrap().tools;
        assert_eq!((tools.tools.len(), tools.choice), (0, ToolChoice::Auto));

        let hosted = json!({"type": "web_search_preview_2025_03_11"});
        let check = |tools: Value, choice: Value| {
            let error = request(json!({"tools": tools, "tool_choice": choice})).err().unwrap().body();
            assert_eq!(error["error"]["param"], "tool_choice", "{error}");
        };
        check(json!([function, hosted]), hosted.clone());
        check(json!([hosted]), json!("required"));
        let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [hosted]});
        check(json!([function, hosted]), allowed);
        assert!(serde_json::from_value::<ResponseChoice>(json!({"type": "web_searches"})).is_err());
        assert!(request(json!({"tools": [{"type": "functoin", "name": "a", "parameters": {}}]})).is_err());
    }

    #[test]
    fn items_of_hosted_tools_are_ignored_by_name() {
        let body = json!({"model": "m", "input": [
            {"role": "user", "content": "a"}, {"type": "image_generation_call", "id": "ig_1", "result": "AA"},
            {"type": "mcp_list_tools", "id": "m", "tools": []}, {"type": "of_tomorrow"},
            {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": "data:"}},
            {"type": "shell_call_output", "call_id": "s", "output": [{"stdout": "a", "outcome": {"type": "exit"}}]},
            {"type": "tool_search_call", "arguments": {"query": "a"}},
        ]});
        let mut ignored = IgnoredParameters::default();
        let body: ResponsesBody = serde_json::from_value(body).unwrap();
        let read = body.into_request(SharedFields::default(), &mut ignored).ok().unwrap();
        assert_eq!(read.input.len(), 1);
        let expect = [
            "image_generation_call",
            "mcp_list_tools",
            "input",
            "computer_call_output",
            "shell_call_output",
            "tool_search_call",
        ];
        assert_eq!(ignored.names(), expect);
        let call = json!({"type": "function_call", "name": "w", "call_id": "c", "arguments": {}});
        let body = json!({"model": "m", "input": [call]});
        let body: ResponsesBody = serde_json::from_value(body).unwrap();
        let error = body.into_request(SharedFields::default(), &mut ignored).err().unwrap().body();
        assert_eq!(error["error"]["param"], "input[0].arguments", "{error}");
    }

    #[test]
    fn items_become_messages() {
        let body = json!({
            "model": "m",
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "c1", "name": "w", "namespace": "s", "arguments": "{\"city\": \"Rome\"}"},
                {"type": "function_call_output", "call_id": "c1", "output": "12"},
            ],
            "tools": [{"type": "web_search_2025_08_26"}, {"type": "function", "name": "w", "parameters": {"type": "object"}, "strict": true},
                {"type": "namespace", "name": "s", "description": "", "tools": [{"type": "function", "name": "w"}, {"type": "custom", "name": "p"}]}],
            "tool_choice": {"type": "function", "name": "w"},
            "text": {
                "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low",
            },
            "reasoning": {"effort": "low", "summary": "auto"},
        });
        let mut ignored = IgnoredParameters::default();
        let body = serde_json::from_value::<ResponsesBody>(body).unwrap();
        let request = body.into_request(SharedFields::default(), &mut ignored).unwrap();
        let input = to_messages(resolve(request.input, |_| HashMap::new()).unwrap());
        let roles: Vec<Role> = input.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool]);
        assert_eq!(request.instructions.unwrap().content, "Be brief.");
        assert_eq!(ignored.names(), ["web_search", "text.verbosity"]);
        assert_eq!(request.reasoning_parameters, ["reasoning.effort", "reasoning.summary"]);
        assert_eq!(input[1].tool_calls[0].function.arguments, json!({"city": "Rome"}));
        assert_eq!(input[1].tool_calls[0].function.name, "s.w");
        let names: Vec<&str> = request.tools.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["w", "s.w", "s.p"]);
        assert_eq!(request.tools.choice, ToolChoice::Function("w".to_owned()));
        assert_eq!(request.tools.tools[0].strictness, Strictness::Strict);
        assert_eq!(request.options.grammar.unwrap().grammar, Grammar::json_object());
    }
}
