//! Arguments of `run`, `chat` and `complete`.

use std::{path::PathBuf, str::FromStr};

use clap::Args as ClapArgs;
use narthex_gateway::Error;

use super::{DecoderLoadArgs, ToolArgs, at_least_one, whole_number};

/// `narthex chat`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ChatArgs {
    /// The question [default: standard input, if it is not a terminal]
    pub(crate) prompt: Option<String>,

    /// The model: a name, hf:owner/repo, or a path [default: smollm2:135m, a small demonstration]
    #[arg(short, long)]
    model: Option<String>,

    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// A text file that the question is about; repeatable. Question-answering models answer with a part of it
    #[arg(long = "file", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) media: MediaArgs,

    #[command(flatten)]
    pub(crate) tools: ToolArgs,

    #[command(flatten)]
    pub(crate) generate: GenerateArgs,

    #[command(flatten)]
    pub(crate) load: DecoderLoadArgs,
}

/// Media of a question.
#[derive(Debug, ClapArgs)]
pub(crate) struct MediaArgs {
    /// An image that the question is about, or the first question of a conversation: PNG, JPEG, WebP, GIF or BMP;
    /// repeatable
    #[arg(long = "image", value_name = "FILE")]
    pub(crate) images: Vec<PathBuf>,

    /// A video that the question is about, or the first question of a conversation, of which the model sees one frame for each
    /// second: animated GIF, PNG or WebP, or Motion JPEG; repeatable
    #[arg(long = "video", value_name = "FILE")]
    pub(crate) videos: Vec<PathBuf>,

    /// A sound that the question is about, or the first question of a conversation: WAV, MP3, FLAC, Ogg, Opus, M4A, AAC, WebM
    /// or AIFF; repeatable
    #[arg(long = "audio", value_name = "FILE")]
    pub(crate) sounds: Vec<PathBuf>,
}

/// `narthex run`: the arguments of `chat`, with the model first.
#[derive(Debug, ClapArgs)]
pub(crate) struct RunArgs {
    /// The model: a name, hf:owner/repo, or a path
    pub(crate) model: String,

    /// The question [default: standard input; a conversation on a terminal]
    pub(crate) prompt: Option<String>,

    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// A text file that the question is about; repeatable. Question-answering models answer with a part of it
    #[arg(long = "file", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) media: MediaArgs,

    #[command(flatten)]
    pub(crate) tools: ToolArgs,

    #[command(flatten)]
    pub(crate) generate: GenerateArgs,

    #[command(flatten)]
    pub(crate) load: DecoderLoadArgs,
}

impl From<RunArgs> for ChatArgs {
    fn from(RunArgs { model, prompt, system, files, media, tools, generate, load }: RunArgs) -> Self {
        Self { prompt, model: Some(model), system, files, media, tools, generate, load }
    }
}

/// Model of `chat` if none is named.
const DEMONSTRATION: &str = "smollm2:135m";

impl ChatArgs {
    /// Returns the model.
    pub(crate) fn model(&self) -> &str {
        self.model.as_deref().unwrap_or(DEMONSTRATION)
    }

    /// Returns whether no model was named, so that the demonstration answers.
    pub(crate) fn is_demonstration(&self) -> bool {
        self.model.is_none()
    }
}

/// `narthex complete`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompleteArgs {
    /// The text to continue [default: standard input]
    pub(crate) prompt: Option<String>,

    /// The model: a name, hf:owner/repo, or a path [default: the newest installed text or chat model, else
    /// gemma3:270m-base]
    #[arg(short, long)]
    pub(crate) model: Option<String>,

    #[command(flatten)]
    pub(crate) generate: GenerateArgs,

    #[command(flatten)]
    pub(crate) load: DecoderLoadArgs,
}

/// Options of generating text that a conversation may change by name.
const CHANGEABLE: &[&str] = &[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "seed",
    "stop",
    "markdown",
];

impl GenerateArgs {
    /// Returns the options with a changed one. An empty value removes it; `stop` is added.
    pub(crate) fn with(&self, name: &str, value: &str) -> Result<Self, Error> {
        let mut changed = self.clone();
        let name = name.trim_start_matches('-').replace('-', "_");
        match name.as_str() {
            "temperature" => changed.sampling.temperature = number(&name, value)?,
            "top_p" => changed.sampling.top_p = number(&name, value)?,
            "top_k" => changed.sampling.top_k = number(&name, value)?,
            "min_p" => changed.sampling.min_p = number(&name, value)?,
            "repeat_penalty" | "repetition_penalty" => {
                changed.sampling.repeat_penalty = number(&name, value)?
            }
            "presence_penalty" => changed.presence_penalty = number(&name, value)?.unwrap_or_default(),
            "frequency_penalty" => changed.frequency_penalty = number(&name, value)?.unwrap_or_default(),
            "max_tokens" => changed.max_tokens = number(&name, value)?,
            "seed" => changed.seed = number(&name, value)?,
            "stop" if value.is_empty() => changed.sampling.stop.clear(),
            "stop" => changed.sampling.stop.push(value.to_owned()),
            "markdown" => changed.markdown = number(&name, value)?.unwrap_or_default(),
            _ => {
                let names = CHANGEABLE.join(", ");
                return Err(Error::invalid("set", format!("expected one of {names}, found {name:?}")));
            }
        }
        Ok(changed)
    }

    /// Returns the changeable options with their values, one a line.
    pub(crate) fn listed(&self) -> String {
        let publisher = "by the publisher";
        let shown = |value: Option<String>, absent: &str| value.unwrap_or_else(|| absent.to_owned());
        let stop = &self.sampling.stop;
        let sampling = self.sampling.numbers().map(|(_, value)| shown(value, publisher));
        let values = sampling.into_iter().chain([
            self.presence_penalty.to_string(),
            self.frequency_penalty.to_string(),
            shown(self.max_tokens.map(|value| value.to_string()), "up to the context"),
            shown(self.seed.map(|value| value.to_string()), "random"),
            if stop.is_empty() { "none".to_owned() } else { format!("{stop:?}") },
            self.markdown.to_string(),
        ]);
        let lines = CHANGEABLE.iter().zip(values).map(|(name, value)| format!("{name:17} {value}"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Parses the value of an option; an empty one is `None`.
fn number<T: FromStr>(name: &str, value: &str) -> Result<Option<T>, Error> {
    if value.is_empty() {
        return Ok(None);
    }
    value
        .parse()
        .map(Some)
        .map_err(|_| Error::invalid("set", format!("expected another value of {name}, found {value:?}")))
}

/// Options of sampling, and the ends of answers.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct SamplingArgs {
    /// Sampling temperature, 0 to 2; 0 is greedy [default of this and the next four: the value of the model's publisher,
    /// which `show` prints; without one, greedy]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,

    /// Keep the most likely tokens up to this cumulative probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,

    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,

    /// Drop tokens below this share of the highest probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,

    /// Divide the logits of tokens that occurred by this factor; 1 for no penalty
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    pub(crate) repeat_penalty: Option<f32>,

    /// Stop at this text; repeatable
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl SamplingArgs {
    /// Returns the numbers by their names in the settings file.
    pub(crate) fn numbers(&self) -> [(&'static str, Option<String>); 5] {
        [
            ("temperature", self.temperature.map(|value| value.to_string())),
            ("top_p", self.top_p.map(|value| value.to_string())),
            ("top_k", self.top_k.map(|value| value.to_string())),
            ("min_p", self.min_p.map(|value| value.to_string())),
            ("repeat_penalty", self.repeat_penalty.map(|value| value.to_string())),
        ]
    }
}

/// Options of generating text.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Options for generating text")]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    /// Subtract this from the logits of tokens that occurred, -2 to 2
    #[arg(long, default_value_t = 0.0, value_name = "N", allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,

    /// Subtract this from the logits of tokens for each occurrence, -2 to 2
    #[arg(long, default_value_t = 0.0, value_name = "N", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,

    /// Maximum number of generated tokens [default: up to the model's context; 128 for `complete`]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<usize>,

    /// Seed for reproducible sampling
    #[arg(long, value_name = "N", value_parser = whole_number::<u64>, allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,

    /// Answer in JSON that follows a schema: a JSON schema, a file with one, or json for any object
    #[arg(long, value_name = "SCHEMA")]
    pub(crate) format: Option<String>,

    /// Print the answer as a JSON object with the model, the reason of its end, token counts and times
    #[arg(long)]
    pub(crate) json: bool,

    /// Render Markdown on a terminal
    #[arg(long)]
    pub(crate) markdown: bool,

    /// Print the generated text only
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::{Args, Command};

    #[test]
    fn options_are_changed_by_name() {
        let args = Args::try_parse_from(["narthex", "chat", "--temperature", "0.5", "--stop", "x"]).unwrap();
        let Some(Command::Chat(chat)) = args.command else { panic!("not chat") };
        let changed = chat.generate.with("top-k", "40").unwrap().with("stop", "y").unwrap();
        assert_eq!((changed.sampling.temperature, changed.sampling.top_k), (Some(0.5), Some(40)));
        assert_eq!(changed.sampling.stop, ["x", "y"]);
        assert!(changed.listed().contains("top_k             40\n"), "{}", changed.listed());
        let without = changed.with("temperature", "").unwrap().with("stop", "").unwrap();
        assert_eq!((without.sampling.temperature, without.sampling.stop.len()), (None, 0));
        for (name, value) in [("top_k", "many"), ("warmth", "1"), ("markdown", "perhaps")] {
            let error = changed.with(name, value).unwrap_err().to_string();
            assert!(error.contains("expected") && error.contains("found"), "{error}");
        }
        for name in super::CHANGEABLE {
            changed.with(name, "").unwrap();
        }
    }
}
