//! `narthex transcribe`: the text of speech in files.

use std::{
    fs::File,
    io::{BufReader, Cursor, IsTerminal, stderr, stdin},
    ops::ControlFlow,
    path::Path,
    time::Instant,
};

use anyhow::Context;
use narthex_audio::{
    Decoder,
    transcript::{Granularities, Task, Transcript, TranscriptFormat},
};
use narthex_gateway::{
    Error, Gateway,
    models::ModelKind,
    request::{ActivitySettings, BeamSearch, TranscriptionEvent, TranscriptionRequest},
};
use narthex_spec::{Progress, ProgressSink, progress::Unit};

use crate::{
    args::{TextFormat, TranscribeArgs},
    bars::Bars,
    interrupt, output,
};

/// Maximum size of standard input in bytes.
const MAX_INPUT: u64 = 1 << 30;

/// A file that is open.
struct Input {
    name: String,
    audio: Decoder<'static>,
}

/// Transcribes the files one after another.
pub(crate) fn run(gateway: &Gateway, args: &TranscribeArgs) -> anyhow::Result<()> {
    let format = format(args)?;
    // An unusable file is reported before the model is loaded, which may take minutes.
    let first = Input::open(&args.files[0])?;
    if args.vad {
        gateway.fetch_speech_detector(&Bars::new(), interrupt::cancel())?;
    }
    let status = super::load(gateway, &args.model, &[ModelKind::Transcription], &Bars::new())?;
    let request = TranscriptionRequest {
        task: if args.translate { Task::Translate } else { Task::Transcribe },
        language: args.language.clone(),
        prompt: args.prompt.clone(),
        beams: args.beam_size.map(BeamSearch::new),
        words: args.words,
        vad: args.vad.then(ActivitySettings::default),
        ..TranscriptionRequest::new(status.id())
    };

    let mut first = Some(first);
    for (at, path) in args.files.iter().enumerate() {
        let input = first.take().map_or_else(|| Input::open(path), Ok)?;
        if format == TranscriptFormat::Text && args.files.len() > 1 {
            output::line(format!("{}==> {} <==", if at == 0 { "" } else { "\n" }, input.name))?;
        }
        transcribe(gateway, &request, input, format)?;
    }
    Ok(())
}

/// Returns the format of the transcripts.
fn format(args: &TranscribeArgs) -> Result<TranscriptFormat, Error> {
    let usual = if args.words { TextFormat::VerboseJson } else { TextFormat::Text };
    let format = TranscriptFormat::from(args.format.unwrap_or(usual));
    if args.words && format != TranscriptFormat::VerboseJson {
        let found = format.name();
        let message =
            format!("--words: expected --format verbose_json, found {found}; leave one of both out");
        return Err(Error::invalid("words", message));
    }
    if args.files.len() > 1 && matches!(format, TranscriptFormat::Srt | TranscriptFormat::Vtt) {
        let message =
            format!("expected one file for subtitles, found {}; run one at a time", args.files.len());
        return Err(Error::invalid("file", message));
    }
    Ok(format)
}

impl Input {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let what = || format!("cannot read {name}");
        let audio = if path.as_os_str() == "-" {
            let bytes = interrupt::input(|| narthex_files::read_bounded(stdin().lock(), MAX_INPUT))
                .context("cannot read standard input")?;
            Decoder::open(Cursor::new(bytes))
        } else {
            let file: File =
                narthex_files::open_regular(path).map_err(|source| Error::Io { what: what(), source })?;
            Decoder::open(BufReader::new(file))
        };
        let audio = audio.map_err(Error::Audio).with_context(what)?;
        Ok(Self { name, audio })
    }
}

/// Transcribes a file. On a terminal, its text appears while it is recognised.
fn transcribe(
    gateway: &Gateway,
    request: &TranscriptionRequest,
    input: Input,
    format: TranscriptFormat,
) -> anyhow::Result<()> {
    let Input { name, mut audio } = input;
    let progress = SpeechProgress::start(&name, audio.stated_duration());
    let mut outcome = Ok(());
    let transcript = gateway.transcribe(request, &mut audio, &mut |event| {
        match event {
            TranscriptionEvent::Segment(segment) if format == TranscriptFormat::Text => {
                outcome = output::line(segment.text.trim());
            }
            TranscriptionEvent::Segment(_) => {}
            TranscriptionEvent::Progress { seconds } => progress.advance(seconds),
        }
        if outcome.is_err() || interrupt::cancel().is_cancelled() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    outcome?;
    let transcript = transcript.with_context(|| format!("cannot transcribe {name}"))?;

    progress.finish(&transcript);
    if format != TranscriptFormat::Text {
        let parts = Granularities { segments: true, words: request.words };
        let text = transcript.write(format, parts);
        output::text(text.trim_end_matches('\n')).and_then(|()| output::text("\n"))?;
    }
    Ok(())
}

/// Progress on a terminal.
struct SpeechProgress {
    bars: Bars,
    stage: String,
    began: Instant,
}

impl SpeechProgress {
    /// Shows the beginning of a file with a duration in seconds, if it is known.
    fn start(name: &str, duration: Option<f64>) -> Self {
        let stage = format!("transcribing {name}");
        let bars = Bars::unless(!stderr().is_terminal());
        let total = duration.map(|seconds| seconds.ceil() as u64);
        bars.event(Progress::Started { stage: stage.clone(), unit: Unit::Items, total });
        Self { bars, stage, began: Instant::now() }
    }

    fn advance(&self, seconds: f64) {
        self.bars.event(Progress::Advanced { stage: self.stage.clone(), done: seconds as u64 });
    }

    /// Shows the time that the file took.
    fn finish(&self, transcript: &Transcript) {
        self.bars.event(Progress::Finished { stage: self.stage.clone() });
        if stderr().is_terminal() {
            output::note(summary(transcript.duration, self.began.elapsed().as_secs_f64()));
        }
    }
}

/// Returns the durations of the audio and of the work, in seconds, and their ratio.
fn summary(audio: f64, work: f64) -> String {
    format!("{audio:.1} s of audio in {work:.1} s, {:.1} times real time", audio / work.max(1e-3))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn parse(arguments: &[&str]) -> TranscribeArgs {
        let arguments = ["narthex", "transcribe"].iter().chain(arguments);
        match Args::try_parse_from(arguments).unwrap().command {
            Some(Command::Transcribe(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_format_fits_the_request() {
        let check = |arguments: &[&str], expect: Result<TranscriptFormat, &str>| {
            let found = format(&parse(arguments)).map_err(|error| error.to_string());
            match (found, expect) {
                (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{arguments:?}"),
                (Err(found), Err(expect)) => assert!(found.contains(expect), "{found}"),
                (found, _) => panic!("{arguments:?}: {found:?}"),
            }
        };
        check(&["a.wav"], Ok(TranscriptFormat::Text));
        check(&["a.wav", "--words"], Ok(TranscriptFormat::VerboseJson));
        check(&["a.wav", "b.wav", "--format", "json"], Ok(TranscriptFormat::Json));
        check(&["a.wav", "--words", "--format", "srt"], Err("expected --format verbose_json, found srt"));
        check(&["a.wav", "b.wav", "--format", "vtt"], Err("expected one file for subtitles, found 2"));
    }

    #[test]
    fn an_unusable_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter.txt");
        std::fs::write(&path, "Dear Sir").unwrap();
        let message = |path: &Path| format!("{:#}", Input::open(path).err().unwrap());
        let found = message(&path);
        assert!(found.contains("letter.txt") && found.contains("starts with \"Dear Sir\""), "{found}");
        assert!(message(&folder.path().join("absent.wav")).contains("absent.wav"));
        assert!(message(folder.path()).contains("cannot read"));
    }

    #[test]
    fn the_summary_has_the_real_time_factor() {
        assert_eq!(summary(11.0, 0.55), "11.0 s of audio in 0.6 s, 20.0 times real time");
    }
}
