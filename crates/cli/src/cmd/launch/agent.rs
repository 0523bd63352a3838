//! The agents: the command that starts each, and its settings for the server.

use serde_json::json;

use crate::args::Agent;

/// Key of an [`Endpoint`] whose command is printed. It stands for the value of `NARTHEX_API_KEY`.
pub(super) const KEY_REFERENCE: &str = "$NARTHEX_API_KEY";

/// The server and the model that an agent uses.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    /// URL without a path, such as `http://127.0.0.1:8000`.
    pub(super) origin: String,
    pub(super) model: String,
    /// Maximum number of tokens of a conversation, if it is known.
    pub(super) context: Option<usize>,
    /// API key; arbitrary if the server has no keys.
    pub(super) key: String,
}

/// A variable of the agent's environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) value: String,
}

/// The command that starts an agent.
#[derive(Debug)]
pub(super) struct AgentCommand {
    pub(super) program: &'static str,
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<Variable>,
}

impl Agent {
    /// Returns the program of the agent.
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Codex => "codex",
            Self::Claude => "claude",
            Self::Opencode => "opencode",
            Self::Aider => "aider",
            Self::OpenInterpreter => "interpreter",
            Self::Qwen => "python3",
        }
    }

    /// Returns the command that installs the program.
    pub(super) fn install(self) -> &'static str {
        match self {
            Self::Codex => "npm install -g @openai/codex",
            Self::Claude => "npm install -g @anthropic-ai/claude-code",
            Self::Opencode => "npm install -g opencode-ai",
            Self::Aider => "python -m pip install aider-chat",
            Self::OpenInterpreter => "python -m pip install open-interpreter",
            Self::Qwen => INSTALL_QWEN_AGENT,
        }
    }
}

/// Command that installs Qwen-Agent and the packages that it needs and does not name.
const INSTALL_QWEN_AGENT: &str = "python3 -m pip install qwen-agent numpy python-dateutil soundfile tqdm";

/// Python program for a conversation with Qwen-Agent, which has no command of its own.
const QWEN_AGENT: &str = "
import os, sys
try:
    from qwen_agent.agents import Assistant
except ImportError as error:
    sys.exit(f'{error}; install it with `python3 -m pip install qwen-agent numpy python-dateutil soundfile tqdm`')
names = ('model', 'model_server', 'api_key')
llm = {name: os.environ['QWEN_AGENT_' + name.upper()] for name in names}
bot, messages = Assistant(llm=llm), []
while True:
    try:
        messages.append({'role': 'user', 'content': input('> ')})
    except EOFError:
        break
    answer = []
    for answer in bot.run(messages=messages):
        pass
    messages.extend(answer)
    print('\\n'.join(str(message.get('content', '')) for message in answer))
";

impl AgentCommand {
    /// Creates the command for an agent.
    pub(super) fn new(agent: Agent, endpoint: &Endpoint) -> Self {
        let Endpoint { origin, model, context, key } = endpoint;
        let base = format!("{origin}/v1");
        let program = agent.program();

        match agent {
            Agent::Codex => Self {
                program,
                arguments: codex_arguments(&base, endpoint),
                environment: vec![variable("NARTHEX_API_KEY", key)],
            },
            Agent::Claude => Self {
                program,
                arguments: words(&["--model", model]),
                environment: [
                    variable("ANTHROPIC_BASE_URL", origin),
                    variable("ANTHROPIC_AUTH_TOKEN", key),
                    // The user's own key and models are for Anthropic's servers.
                    variable("ANTHROPIC_API_KEY", ""),
                    variable("ANTHROPIC_MODEL", model),
                    variable("ANTHROPIC_DEFAULT_OPUS_MODEL", model),
                    variable("ANTHROPIC_DEFAULT_SONNET_MODEL", model),
                    variable("ANTHROPIC_DEFAULT_HAIKU_MODEL", model),
                    variable("CLAUDE_CODE_SUBAGENT_MODEL", model),
                    variable("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
                ]
                .into_iter()
                // Without it, a conversation would be compacted at the length of Anthropic's models.
                .chain(context.map(|n| variable("CLAUDE_CODE_AUTO_COMPACT_WINDOW", &n.to_string())))
                .collect(),
            },
            Agent::Opencode => Self {
                program,
                arguments: Vec::new(),
                environment: vec![variable("OPENCODE_CONFIG_CONTENT", &opencode_config(&base, endpoint))],
            },
            Agent::Aider => Self {
                program,
                arguments: words(&["--model", &format!("openai/{model}"), "--no-show-model-warnings"]),
                // Variables of Aider's options take precedence over those of a project's `.env`.
                environment: vec![
                    variable("AIDER_OPENAI_API_BASE", &base),
                    variable("AIDER_OPENAI_API_KEY", key),
                ],
            },
            Agent::OpenInterpreter => Self {
                program,
                arguments: interpreter_arguments(&base, endpoint),
                environment: vec![variable("OPENAI_API_KEY", key)],
            },
            Agent::Qwen => Self {
                program,
                arguments: words(&["-c", QWEN_AGENT]),
                environment: [
                    variable("QWEN_AGENT_MODEL", model),
                    variable("QWEN_AGENT_MODEL_SERVER", &base),
                    variable("QWEN_AGENT_API_KEY", key),
                ]
                .into_iter()
                // The rest of the context is for the answer.
                .chain(context.map(|n| variable(QWEN_INPUT_LENGTH, &(n - n / 4).to_string())))
                .collect(),
            },
        }
    }

    /// Returns the command as a line for a POSIX shell, followed by additional arguments.
    pub(super) fn shell(&self, further: &[String]) -> String {
        let environment = self.environment.iter();
        let environment =
            environment.map(|Variable { name, value }| format!("{name}={}", quoted_value(value)));
        let arguments = self.arguments.iter().chain(further).map(|argument| quoted(argument));
        let words: Vec<String> = environment.chain([self.program.to_owned()]).chain(arguments).collect();
        words.join(" ")
    }
}

/// Variable with the maximum number of tokens that Qwen-Agent sends.
const QWEN_INPUT_LENGTH: &str = "QWEN_AGENT_DEFAULT_MAX_INPUT_TOKENS";

/// Returns Open Interpreter's arguments. The program only knows the context lengths of cloud models.
fn interpreter_arguments(base: &str, Endpoint { model, context, .. }: &Endpoint) -> Vec<String> {
    let mut arguments =
        vec!["--model".to_owned(), format!("openai/{model}"), "--api_base".to_owned(), base.to_owned()];
    if let Some(context) = context {
        arguments.extend(["--context_window".to_owned(), context.to_string()]);
        arguments.extend(["--max_tokens".to_owned(), (context / 4).to_string()]);
    }
    arguments
}

/// Time in milliseconds after which Codex gives up on a stream without events. A local model may read a long prompt for
/// minutes.
const CODEX_IDLE_MS: u64 = 1_200_000;

/// Returns Codex's arguments. Its settings are TOML, in which strings have the same form as in JSON.
fn codex_arguments(base: &str, Endpoint { model, context, .. }: &Endpoint) -> Vec<String> {
    // Codex passes settings on to its subcommands, but not the option `--model`.
    let settings = [
        ("model", json!(model)),
        ("model_provider", json!("narthex")),
        ("model_providers.narthex.name", json!("Narthex")),
        ("model_providers.narthex.base_url", json!(base)),
        ("model_providers.narthex.env_key", json!("NARTHEX_API_KEY")),
        ("model_providers.narthex.wire_api", json!("responses")),
        ("model_providers.narthex.stream_idle_timeout_ms", json!(CODEX_IDLE_MS)),
    ];
    let context = context.map(|context| ("model_context_window", json!(context)));
    let settings = settings.into_iter().chain(context);
    settings.flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]).collect()
}

/// Returns OpenCode's settings as JSON.
fn opencode_config(base: &str, Endpoint { model, context, key, .. }: &Endpoint) -> String {
    let mut entry = json!({"name": model});
    if let Some(context) = context {
        // OpenCode requires a limit of answers too, and keeps as many tokens of the context free.
        entry["limit"] = json!({"context": context, "output": context / 4});
    }
    let mut models = serde_json::Map::new();
    models.insert(model.clone(), entry);
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible",
        "name": "Narthex",
        "options": {"baseURL": base, "apiKey": key},
        "models": models,
    });
    let name = format!("narthex/{model}");
    // The small model, for titles, may be that of a cloud service in the user's settings.
    json!({"model": name, "small_model": name, "provider": {"narthex": provider}}).to_string()
}

fn variable(name: &'static str, value: &str) -> Variable {
    Variable { name, value: value.to_owned() }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Quotes the value of a variable for a POSIX shell, which expands [`KEY_REFERENCE`] in it.
fn quoted_value(value: &str) -> String {
    let parts = value.split(KEY_REFERENCE);
    let parts = parts.map(|part| if part.is_empty() { String::new() } else { quoted(part) });
    parts.collect::<Vec<_>>().join(&format!("\"{KEY_REFERENCE}\""))
}

/// Quotes a word for a POSIX shell, if necessary. It is our own, because `shlex` also quotes words with `=` or `,`, of
/// which these commands have many.
fn quoted(word: &str) -> String {
    let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=@,+".contains(c));
    if is_plain && !word.is_empty() {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            origin: "http://127.0.0.1:8000".to_owned(),
            model: "qwen3:0.6b".to_owned(),
            context: Some(40_960),
            key: "a b".to_owned(),
        }
    }

    #[test]
    fn every_agent_learns_the_server_and_the_model() {
        for agent in Agent::value_variants() {
            let line = AgentCommand::new(*agent, &endpoint()).shell(&[]);
            assert!(line.contains("http://127.0.0.1:8000") && line.contains("qwen3:0.6b"), "{line}");
        }
    }

    #[test]
    fn agents_learn_the_context_and_the_origin() {
        let check = |agent, known: &[&str]| {
            let secure = Endpoint { origin: "https://[::1]:8443".to_owned(), ..endpoint() };
            let line = AgentCommand::new(agent, &secure).shell(&[]);
            for text in [known, &["https://[::1]:8443"]].concat() {
                assert!(line.contains(text), "{line}");
            }
            let unknown = Endpoint { context: None, ..endpoint() };
            let line = AgentCommand::new(agent, &unknown).shell(&[]);
            assert!(!line.contains("40960") && !line.contains("null"), "{line}");
        };
        let codex =
            ["-c model_context_window=40960", "-c model_providers.narthex.stream_idle_timeout_ms=1200000"];
        check(Agent::Codex, &codex);
        check(Agent::Claude, &["CLAUDE_CODE_AUTO_COMPACT_WINDOW=40960"]);
        let small = r#""small_model":"narthex/qwen3:0.6b""#;
        check(Agent::Opencode, &[r#""limit":{"context":40960,"output":10240}"#, small]);
        check(Agent::OpenInterpreter, &["--context_window 40960 --max_tokens 10240"]);
        check(Agent::Qwen, &["QWEN_AGENT_DEFAULT_MAX_INPUT_TOKENS=30720"]);
    }

    #[test]
    fn qwen_agent_is_installed_by_one_command() {
        assert!(QWEN_AGENT.contains(INSTALL_QWEN_AGENT));
    }

    #[test]
    fn lines_are_quoted_for_a_shell() {
        let line = AgentCommand::new(Agent::Aider, &endpoint()).shell(&["it's".to_owned()]);
        assert_eq!(
            line,
            "AIDER_OPENAI_API_BASE=http://127.0.0.1:8000/v1 AIDER_OPENAI_API_KEY='a b' aider --model \
             openai/qwen3:0.6b --no-show-model-warnings 'it'\\''s'"
        );
        let hidden = Endpoint { key: KEY_REFERENCE.to_owned(), ..endpoint() };
        let line = AgentCommand::new(Agent::Opencode, &hidden).shell(&[]);
        assert!(line.contains(r#""apiKey":"'"$NARTHEX_API_KEY"'""#), "{line}");
        let line = AgentCommand::new(Agent::OpenInterpreter, &hidden).shell(&[KEY_REFERENCE.to_owned()]);
        assert!(line.starts_with(r#"OPENAI_API_KEY="$NARTHEX_API_KEY" interpreter"#), "{line}");
        assert!(line.ends_with("'$NARTHEX_API_KEY'"), "{line}");
        let line = AgentCommand::new(Agent::Codex, &endpoint()).shell(&[]);
        assert!(line.contains(r#"-c 'model_providers.narthex.wire_api="responses"'"#), "{line}");
        assert!(line.starts_with(r#"NARTHEX_API_KEY='a b' codex -c 'model="qwen3:0.6b"' -c"#), "{line}");
    }
}
