//! Arguments of `transcribe` and `say`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use narthex_audio::{SoundFormat, transcript::TranscriptFormat};
use narthex_gateway::request::{SpeechRequest, TranscriptionRequest};

use super::LoadArgs;

/// `narthex transcribe`.
#[derive(Debug, ClapArgs)]
pub(crate) struct TranscribeArgs {
    /// The files: wav, aiff, flac, mp3, ogg, opus, m4a, mp4, aac, webm or mkv; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = TranscriptionRequest::DEFAULT_MODEL)]
    pub(crate) model: String,

    /// Language of the speech, as in de or German [default: the model detects it]
    #[arg(long)]
    pub(crate) language: Option<String>,

    /// Translate the speech to English
    #[arg(long)]
    pub(crate) translate: bool,

    /// Format of the transcript [default: text, or verbose_json with --words]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<TextFormat>,

    /// Add the times of words, which only verbose_json has
    #[arg(long)]
    pub(crate) words: bool,

    /// Find speech first and leave out pauses of two seconds and more; the first use downloads Silero VAD, 11 MB
    #[arg(long)]
    pub(crate) vad: bool,

    /// Text before the speech, such as names in it; the transcript follows its spelling and style
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,

    /// Search with this number of beams, 1 to 16; Whisper alone has this search, which takes as many times as long
    #[arg(long, value_name = "BEAMS")]
    pub(crate) beam_size: Option<usize>,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// Format of a transcript, with its name in the OpenAI API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum TextFormat {
    Text,
    Json,
    VerboseJson,
    Srt,
    Vtt,
}

impl From<TextFormat> for TranscriptFormat {
    fn from(format: TextFormat) -> Self {
        match format {
            TextFormat::Text => Self::Text,
            TextFormat::Json => Self::Json,
            TextFormat::VerboseJson => Self::VerboseJson,
            TextFormat::Srt => Self::Srt,
            TextFormat::Vtt => Self::Vtt,
        }
    }
}

/// `narthex say`.
#[derive(Debug, ClapArgs)]
pub(crate) struct SayArgs {
    /// The text; its Markdown is not read aloud [default: standard input]
    pub(crate) text: Option<String>,

    /// File for the speech [default: a player on a terminal, and otherwise standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Voice of the model [default: its first one]
    #[arg(long)]
    pub(crate) voice: Option<String>,

    /// Factor of the speed, from 0.25 to 4
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    pub(crate) speed: f32,

    /// Format of the speech: wav, pcm, flac or opus [default: that of the file's extension, or wav]
    #[arg(long, value_parser = sound_format)]
    pub(crate) format: Option<SoundFormat>,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = SpeechRequest::DEFAULT_MODEL)]
    pub(crate) model: String,

    /// Seed of the voice's noise; the same seed gives the same speech [default: a new one]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

fn sound_format(name: &str) -> Result<SoundFormat, String> {
    SoundFormat::from_name(name)
        .ok_or_else(|| format!("expected one of {}", SoundFormat::ALL.map(SoundFormat::name).join(", ")))
}
