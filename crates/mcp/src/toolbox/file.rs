//! A file of tools: OpenAI's definitions, each with the command that is the tool.

use std::time::Duration;

use narthex_gateway::request::{ExactJson, Strictness, Tool};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{MAX_NAME_START, MAX_TOOLS, command::CommandTool, definition};

/// Time limit of a command that states none, in seconds.
const TIMEOUT: u64 = 60;

/// Longest time limit that a file may state, in seconds.
const MAX_TIMEOUT: u64 = 3600;

/// The tools of a file.
#[derive(Debug)]
pub struct ToolFile {
    pub(super) tools: Vec<(Tool, CommandTool)>,
}

/// A file without tools that can be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "tools: {0}; each entry is {{\"type\": \"function\", \"function\": {{\"name\": …, \"parameters\": …}}, \"command\": [\"program\", …]}}"
)]
pub struct ToolFileError(String);

/// An entry: that of OpenAI's `tools` with a command.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    r#type: EntryType,
    function: FileFunction,
    /// Program and its arguments. No shell reads them.
    command: Vec<String>,
    /// Time limit in seconds.
    timeout: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EntryType {
    Function,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFunction {
    name: String,
    description: Option<String>,
    parameters: Option<ExactJson>,
    #[serde(default)]
    strict: bool,
}

impl ToolFile {
    /// Reads the JSON of a file: a list of definitions.
    ///
    /// ```
    /// use narthex_mcp::toolbox::ToolFile;
    ///
    /// let file = br#"[{"type": "function", "function": {"name": "today"}, "command": ["date", "-I"]}]"#;
    /// assert!(ToolFile::read(file).is_ok());
    /// ```
    ///
    /// # Errors
    /// [`ToolFileError`] for entries of another form.
    pub fn read(bytes: &[u8]) -> Result<Self, ToolFileError> {
        let entries: Vec<Value> = serde_json::from_slice(bytes)
            .map_err(|error| ToolFileError(format!("expected a JSON list of tools: {error}")))?;
        if entries.len() > MAX_TOOLS {
            return Err(ToolFileError(format!(
                "expected at most {MAX_TOOLS} tools, found {}",
                entries.len()
            )));
        }
        let tools = entries.into_iter().enumerate().map(|(index, entry)| {
            let wrong = |reason: String| ToolFileError(format!("[{index}]: {reason}"));
            let entry: FileEntry = serde_json::from_value(entry).map_err(|error| wrong(error.to_string()))?;
            entry.into_tool().map_err(wrong)
        });
        Ok(Self { tools: tools.collect::<Result<_, _>>()? })
    }
}

impl FileEntry {
    fn into_tool(self) -> Result<(Tool, CommandTool), String> {
        let Self { r#type: EntryType::Function, function, command, timeout } = self;
        let FileFunction { name, description, parameters, strict } = function;
        if !Tool::is_name(&name) || name.len() > MAX_NAME_START {
            return Err(format!("expected a name of letters, digits, _, - and ., found {name:?}"));
        }
        let Some((program, arguments)) = command.split_first().filter(|(program, _)| !program.is_empty())
        else {
            return Err("expected a command with a program, found an empty one".to_owned());
        };
        let seconds = timeout.unwrap_or(TIMEOUT);
        if !(1..=MAX_TIMEOUT).contains(&seconds) {
            return Err(format!("expected a timeout of 1 to {MAX_TIMEOUT} seconds, found {seconds}"));
        }
        let parameters = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}).into());
        let strictness = if strict { Strictness::Strict } else { Strictness::BestEffort };
        let tool = Tool { strictness, ..definition(name, description, parameters) };
        let limit = Duration::from_secs(seconds);
        Ok((tool, CommandTool { program: program.clone(), arguments: arguments.to_vec(), limit }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_have_a_command() {
        let entry = json!({
            "type": "function",
            "function": {"name": "weather", "description": "Weather", "parameters": {"type": "object"}, "strict": true},
            "command": ["./weather", "--json"],
            "timeout": 5,
        });
        let file = ToolFile::read(json!([entry]).to_string().as_bytes()).unwrap();
        let [(tool, command)] = &file.tools[..] else { panic!("one tool") };
        assert_eq!((tool.name.as_str(), tool.strictness), ("weather", Strictness::Strict));
        assert_eq!((command.program.as_str(), command.limit), ("./weather", Duration::from_secs(5)));

        let check = |change: &dyn Fn(&mut Value), expect: &str| {
            let mut entry = entry.clone();
            change(&mut entry);
            let error = ToolFile::read(json!([entry]).to_string().as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("tools: ") && error.contains(expect), "{error}");
            assert!(error.contains("each entry is {\"type\""), "{error}");
        };
        check(&|entry| entry["command"] = json!([]), "[0]: expected a command with a program");
        check(&|entry| entry["command"] = json!("date"), "expected a sequence");
        check(&|entry| entry["function"]["name"] = json!("a b"), "found \"a b\"");
        check(&|entry| entry["timeout"] = json!(0), "found 0");
        check(&|entry| entry["url"] = json!("x"), "unknown field `url`");
        check(&|entry| entry["type"] = json!("web_search"), "expected `function`");
        let error = ToolFile::read(b"{}").unwrap_err().to_string();
        assert!(error.contains("expected a JSON list of tools"), "{error}");
    }
}
