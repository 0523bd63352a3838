//! Rounds of tool calls: a model's calls are approved, executed and answered until it gives an answer without calls.

use narthex_gateway::{
    Cancel,
    request::{ExactJson, FunctionCall, Message, Role, ToolCall, ToolChoice},
};
use serde_json::{Map, Value};

use crate::toolbox::{ToolResult, Toolbox};

/// Result of a call that the user refused.
const REFUSED: &str = "The user refused this call.";

/// A call that a model wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WrittenCall {
    /// Id, which the result repeats.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// JSON text of the arguments.
    pub arguments: String,
}

/// An answer of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelAnswer {
    /// Text.
    pub text: String,
    /// Reasoning before it.
    pub reasoning: String,
    /// Calls.
    pub calls: Vec<WrittenCall>,
    /// Set if the user stopped it.
    pub interrupted: bool,
}

/// Decision on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    /// The tool runs.
    Run,
    /// The model learns that the user refused.
    Refuse,
}

/// The model and the user of a conversation.
pub trait Dialogue {
    /// Failure that ends the conversation.
    type Failure;

    /// Requests the model's answer to these messages.
    fn answer(&mut self, messages: &[Message], choice: &ToolChoice) -> Result<ModelAnswer, Self::Failure>;

    /// Shows a call to the user, who decides on it.
    fn approve(&mut self, call: &WrittenCall) -> Result<Approval, Self::Failure>;

    /// Shows the result of a call.
    fn show(&mut self, call: &WrittenCall, result: &ToolResult) -> Result<(), Self::Failure>;
}

/// End of the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundsEnd {
    /// The model answered.
    Answered,
    /// The user stopped the model or a tool.
    Interrupted,
    /// The model still called tools after the maximum number of rounds.
    Limit,
}

/// Bounds of the rounds.
#[derive(Debug, Clone)]
pub struct Rounds {
    /// Choice of the first answer. The model chooses in later ones, unless there are to be no calls at all.
    pub first: ToolChoice,
    /// Maximum number of rounds of calls.
    pub most: usize,
}

impl Rounds {
    /// Adds the model's answers and the results of its calls to the messages, until it answers without a call.
    ///
    /// # Errors
    /// Failures of the dialogue. A tool that fails is a result for the model.
    pub fn run<D: Dialogue>(
        &self,
        toolbox: &Toolbox,
        dialogue: &mut D,
        messages: &mut Vec<Message>,
        cancel: &Cancel,
    ) -> Result<RoundsEnd, D::Failure> {
        let mut choice = self.first.clone();
        for round in 0..=self.most {
            let answer = dialogue.answer(messages, &choice)?;
            if choice != ToolChoice::None {
                choice = ToolChoice::Auto;
            }
            let is_last = round == self.most || answer.interrupted;
            // A history must not have a call without its result.
            let calls = if is_last { Vec::new() } else { answer.calls.clone() };
            messages.push(message(&answer, &calls));
            if answer.interrupted {
                return Ok(RoundsEnd::Interrupted);
            }
            if answer.calls.is_empty() {
                return Ok(RoundsEnd::Answered);
            }

            for call in calls {
                let result = execute(toolbox, dialogue, &call, cancel)?;
                messages.push(Message {
                    name: Some(call.name),
                    tool_call_id: Some(call.id),
                    ..Message::new(Role::Tool, result.text)
                });
            }

            if cancel.is_cancelled() {
                return Ok(RoundsEnd::Interrupted);
            }
        }
        Ok(RoundsEnd::Limit)
    }
}

fn execute<D: Dialogue>(
    toolbox: &Toolbox,
    dialogue: &mut D,
    call: &WrittenCall,
    cancel: &Cancel,
) -> Result<ToolResult, D::Failure> {
    let result = match arguments(&call.arguments) {
        Err(reason) => ToolResult::failed(reason),
        Ok(_) if cancel.is_cancelled() => ToolResult::failed("The user interrupted the call."),
        Ok(arguments) => match dialogue.approve(call)? {
            Approval::Run => toolbox.call(&call.name, &arguments, cancel),
            Approval::Refuse => return Ok(ToolResult::failed(REFUSED)),
        },
    };
    dialogue.show(call, &result)?;
    Ok(result)
}

/// Reads the arguments of a call; none are an empty object.
fn arguments(text: &str) -> Result<ExactJson, String> {
    if text.trim().is_empty() {
        return Ok(Value::Object(Map::new()).into());
    }
    match ExactJson::parse(text) {
        Ok(arguments) if arguments.is_object() => Ok(arguments),
        Ok(_) => Err("arguments: expected a JSON object, found another value".to_owned()),
        Err(error) => Err(format!("arguments: expected a JSON object: {error}")),
    }
}

/// Returns an answer with these of its calls as a message of the history.
fn message(answer: &ModelAnswer, calls: &[WrittenCall]) -> Message {
    let calls = calls.iter().map(|call| ToolCall {
        id: Some(call.id.clone()),
        function: FunctionCall {
            name: call.name.clone(),
            arguments: arguments(&call.arguments).unwrap_or_else(|_| Value::from(&*call.arguments).into()),
        },
    });
    let tool_calls: Vec<ToolCall> = calls.collect();
    // Templates accept reasoning only in a turn with calls.
    let reasoning = Some(&answer.reasoning).filter(|text| !text.is_empty() && !tool_calls.is_empty());
    Message {
        reasoning_content: reasoning.cloned(),
        tool_calls,
        ..Message::new(Role::Assistant, answer.text.clone())
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use serde_json::json;

    use super::*;
    use crate::toolbox::{ToolFile, ToolOutcome};

    /// A model with scripted answers, and a user who refuses `rm`.
    #[derive(Default)]
    struct ScriptedModel {
        answers: VecDeque<ModelAnswer>,
        choices: Vec<ToolChoice>,
        shown: Vec<String>,
    }

    impl Dialogue for ScriptedModel {
        type Failure = std::convert::Infallible;

        fn answer(&mut self, _: &[Message], choice: &ToolChoice) -> Result<ModelAnswer, Self::Failure> {
            self.choices.push(choice.clone());
            Ok(self.answers.pop_front().unwrap_or_default())
        }

        fn approve(&mut self, call: &WrittenCall) -> Result<Approval, Self::Failure> {
            Ok(if call.name == "rm" { Approval::Refuse } else { Approval::Run })
        }

        fn show(&mut self, call: &WrittenCall, result: &ToolResult) -> Result<(), Self::Failure> {
            let mark = if result.outcome == ToolOutcome::Done { "" } else { "!" };
            self.shown.push(format!("{mark}{} {}", call.name, result.text.trim()));
            Ok(())
        }
    }

    fn calls(calls: &[(&str, &str)]) -> ModelAnswer {
        let calls = calls.iter().enumerate().map(|(index, (name, arguments))| WrittenCall {
            id: format!("c{index}"),
            name: (*name).to_owned(),
            arguments: (*arguments).to_owned(),
        });
        ModelAnswer { calls: calls.collect(), ..ModelAnswer::default() }
    }

    fn says(text: &str) -> ModelAnswer {
        ModelAnswer { text: text.to_owned(), ..ModelAnswer::default() }
    }

    fn toolbox() -> Toolbox {
        let tool = |name: &str, script: &str| json!({"type": "function", "function": {"name": name}, "command": ["sh", "-c", script]});
        let file = json!([tool("echo", "cat"), tool("rm", "touch /no/such/file"), tool("fail", "exit 7")]);
        let file = ToolFile::read(file.to_string().as_bytes()).unwrap();
        Toolbox::open(&[], vec![file], &Cancel::new()).unwrap()
    }

    fn run(answers: Vec<ModelAnswer>, most: usize) -> (RoundsEnd, ScriptedModel, Vec<Message>) {
        let mut scripted = ScriptedModel { answers: answers.into(), ..ScriptedModel::default() };
        let mut messages = vec![Message::new(Role::User, "Go.".to_owned())];
        let rounds = Rounds { first: ToolChoice::Required, most };
        let end = rounds.run(&toolbox(), &mut scripted, &mut messages, &Cancel::new()).unwrap();
        (end, scripted, messages)
    }

    #[test]
    fn results_are_fed_back_until_the_model_answers() {
        let first =
            calls(&[("echo", r#"{"a": [1]}"#), ("rm", ""), ("fail", "{}"), ("echo", "[]"), ("sing", "{}")]);
        let large = r#"{"n": 18446744073709551617}"#;
        let (end, scripted, messages) =
            run(vec![first, calls(&[("echo", "")]), calls(&[("echo", large)]), says("Done.")], 5);
        assert_eq!(end, RoundsEnd::Answered);
        let shown: Vec<&str> = scripted.shown.iter().map(String::as_str).collect();
        assert_eq!(shown[..2], ["echo {\"a\":[1]}", "!fail exit status: 7"]);
        assert!(shown[2].starts_with("!echo arguments: expected a JSON object"), "{shown:?}");
        assert!(shown[3].contains("the tools are echo, rm, fail"), "{shown:?}");
        assert_eq!(shown[4..], ["echo {}", "echo {\"n\":18446744073709551617}"]);
        assert_eq!(scripted.choices[0], ToolChoice::Required);
        assert_eq!(scripted.choices[1..], [ToolChoice::Auto, ToolChoice::Auto, ToolChoice::Auto]);
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        use Role::{Assistant, Tool, User};
        let first = [User, Assistant, Tool, Tool, Tool, Tool, Tool];
        assert_eq!(
            (&roles[..7], &roles[7..]),
            (&first[..], &[Assistant, Tool, Assistant, Tool, Assistant][..])
        );
        assert_eq!(messages[1].tool_calls[0].function.arguments, json!({"a": [1]}));
        assert_eq!(
            (&*messages[3].content.text(), messages[3].tool_call_id.as_deref()),
            (REFUSED, Some("c1"))
        );
        assert_eq!(messages[11].content, "Done.");
    }

    #[test]
    fn rounds_are_bounded_and_leave_a_whole_history() {
        let again = || calls(&[("echo", "{}")]);
        let (end, scripted, messages) = run(vec![again(), again(), again(), again()], 2);
        assert_eq!((end, scripted.choices.len()), (RoundsEnd::Limit, 3));
        assert!(
            messages.last().is_some_and(|last| last.role == Role::Assistant && last.tool_calls.is_empty())
        );
        let stopped = ModelAnswer { interrupted: true, ..again() };
        let (end, scripted, messages) = run(vec![stopped], 2);
        assert_eq!((end, scripted.shown.len(), messages[1].tool_calls.len()), (RoundsEnd::Interrupted, 0, 0));
    }
}
