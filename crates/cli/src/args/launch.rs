//! Arguments of `narthex launch`.

use clap::{Args as ClapArgs, ValueEnum};

/// `narthex launch`.
#[derive(Debug, ClapArgs)]
pub(crate) struct LaunchArgs {
    /// The agent
    pub(crate) agent: Agent,

    /// Model for the agent [default: a loaded chat model of the running server, else the largest installed one]
    #[arg(short, long)]
    pub(crate) model: Option<String>,

    /// Print the environment and the command instead of starting anything
    #[arg(long)]
    pub(crate) print: bool,

    /// Arguments for the agent, after --
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<String>,
}

/// A program that works through a language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Agent {
    /// OpenAI's Codex
    Codex,
    /// Anthropic's Claude Code
    Claude,
    /// OpenCode
    Opencode,
    /// Aider
    Aider,
    /// Open Interpreter
    OpenInterpreter,
    /// Qwen-Agent's assistant, in the terminal
    #[value(name = "qwen-agent")]
    Qwen,
}
