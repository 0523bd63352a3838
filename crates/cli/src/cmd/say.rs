//! `narthex say`: a text as speech, in a file, on standard output or through a player.

use std::{
    io::{self, IsTerminal, Write, stdout},
    ops::ControlFlow,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::Context;
use narthex_audio::{Encoder, Pcm, SoundFormat, StreamEncoder};
use narthex_gateway::{
    Error, Gateway,
    models::ModelKind,
    request::{SpeechEvent, SpeechRequest},
};

use crate::{args::SayArgs, bars::Bars, cmd::program, interrupt, output::NewFile, standard_input};

/// Players that read a WAV file from standard input, with their arguments.
const PLAYERS: [(&str, &[&str]); 4] = [
    ("pw-play", &["-"]),
    ("aplay", &["-q", "-"]),
    ("ffplay", &["-nodisp", "-autoexit", "-loglevel", "error", "-"]),
    ("play", &["-q", "-t", "wav", "-"]),
];

/// Receiver of the speech.
enum Target {
    File(NewFile),
    /// Standard output, which is a pipe or a file.
    Pipe,
    /// A player, as its program and its arguments.
    Player(Command),
}

/// Speaks the text.
pub(crate) fn run(gateway: &Gateway, args: &SayArgs) -> anyhow::Result<()> {
    let text = match &args.text {
        Some(text) if text != "-" => text.clone(),
        _ => standard_input::text("Type the text")?,
    };
    super::check_texts("text", &[&text], "pass it as an argument or on standard input")?;
    let format = format(args)?;
    let target = target(args, format)?;
    let status = super::load(gateway, &args.model, &[ModelKind::Speech], &Bars::new())?;
    let request = SpeechRequest {
        voice: args.voice.clone(),
        speed: args.speed,
        seed: args.seed,
        ..SpeechRequest::new(status.id(), text)
    };

    match target {
        Target::File(file) => {
            let speech = whole(gateway, &request)?;
            file.write(encode(&speech, format)?)
        }
        Target::Pipe => stream(gateway, &request, format, &mut stdout().lock()),
        Target::Player(command) => play(gateway, &request, command),
    }
}

/// Returns the format: the stated one, or that of the file's extension.
fn format(args: &SayArgs) -> Result<SoundFormat, Error> {
    let extension = args.output.as_deref().and_then(Path::extension);
    let Some(extension) = extension.filter(|_| args.format.is_none()) else {
        return Ok(args.format.unwrap_or(SoundFormat::Wav));
    };
    let extension = extension.to_string_lossy();
    SoundFormat::from_name(&extension).ok_or_else(|| {
        let expected = SoundFormat::ALL.map(SoundFormat::name).join(", ");
        let message =
            format!("expected a file with the extension {expected}, found {extension}; or state --format");
        Error::invalid("output", message)
    })
}

/// Opens the receiver, so that an unusable one is reported before the model is loaded.
fn target(args: &SayArgs, format: SoundFormat) -> anyhow::Result<Target> {
    match &args.output {
        Some(path) if path.as_os_str() == "-" => Ok(Target::Pipe),
        Some(path) => NewFile::create(path).map(Target::File),
        None if !stdout().is_terminal() => Ok(Target::Pipe),
        None if format == SoundFormat::Wav => {
            let found = PLAYERS.iter().find_map(|(name, arguments)| Some((program::find(name)?, arguments)));
            let (path, arguments) = found.ok_or_else(no_player)?;
            let mut command = Command::new(path);
            command.args(*arguments);
            Ok(Target::Player(command))
        }
        None => Err(no_player().into()),
    }
}

fn no_player() -> Error {
    let names = PLAYERS.map(|(name, _)| name).join(", ");
    let message = format!(
        "expected a file or a pipe for the speech, or one of the players {names}, found a terminal; add -o speech.wav"
    );
    Error::invalid("output", message)
}

/// Returns the whole speech.
fn whole(gateway: &Gateway, request: &SpeechRequest) -> anyhow::Result<Pcm> {
    let mut speech = Pcm { sample_rate: 0, samples: Vec::new() };
    gateway.speak(request, &mut |event| {
        speech.sample_rate = event.sample_rate;
        speech.samples.extend(event.samples);
        go_on()
    })?;
    Ok(speech)
}

fn encode(speech: &Pcm, format: SoundFormat) -> anyhow::Result<Vec<u8>> {
    let mut encoder = Encoder::new(format, speech.sample_rate, Some(speech.samples.len()))?;
    let mut bytes = encoder.push(&speech.samples)?;
    bytes.extend(encoder.finish()?);
    Ok(bytes)
}

/// Writes each sentence as soon as it is computed.
fn stream(
    gateway: &Gateway,
    request: &SpeechRequest,
    format: SoundFormat,
    output: &mut impl Write,
) -> anyhow::Result<()> {
    let mut encoder = StreamEncoder::new(format);
    let mut failure = None;
    let spoken = gateway.speak(request, &mut |event| match write(&mut encoder, &event, output) {
        Ok(()) => go_on(),
        Err(error) => {
            failure = Some(error);
            ControlFlow::Break(())
        }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    spoken?;
    output.write_all(&encoder.finish()?)?;
    Ok(output.flush()?)
}

/// Encodes and writes a sentence.
fn write(encoder: &mut StreamEncoder, sentence: &SpeechEvent, output: &mut impl Write) -> anyhow::Result<()> {
    output.write_all(&encoder.push(sentence.sample_rate, &sentence.samples)?)?;
    Ok(output.flush()?)
}

/// Plays each sentence as soon as it is computed.
fn play(gateway: &Gateway, request: &SpeechRequest, mut command: Command) -> anyhow::Result<()> {
    let name = command.get_program().display().to_string();
    let start = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut player = Player(start.with_context(|| format!("cannot start {name}"))?);
    let mut input: ChildStdin =
        player.0.stdin.take().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
    stream(gateway, request, SoundFormat::Wav, &mut input)
        .with_context(|| format!("cannot play with {name}"))?;

    // The end of its input ends the player.
    drop(input);
    player.0.wait()?;
    Ok(())
}

/// A running player, which ends with the command.
struct Player(Child);

impl Drop for Player {
    fn drop(&mut self) {
        // A player that has ended cannot be killed, and needs not to be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns whether the speech continues: until the user interrupts it.
fn go_on() -> ControlFlow<()> {
    if interrupt::cancel().is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command as Subcommand};

    fn parse(arguments: &[&str]) -> SayArgs {
        let arguments = ["narthex", "say", "Hello."].iter().chain(arguments);
        match Args::try_parse_from(arguments).unwrap().command {
            Some(Subcommand::Say(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_format_is_that_of_the_file() {
        let check = |arguments: &[&str], expect: Result<SoundFormat, &str>| match (
            format(&parse(arguments)).map_err(|error| error.to_string()),
            expect,
        ) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{arguments:?}"),
            (Err(found), Err(expect)) => assert!(found.contains(expect), "{found}"),
            (found, _) => panic!("{arguments:?}: {found:?}"),
        };
        check(&[], Ok(SoundFormat::Wav));
        check(&["-o", "a.FLAC"], Ok(SoundFormat::Flac));
        check(&["-o", "a"], Ok(SoundFormat::Wav));
        check(&["-o", "a.raw", "--format", "pcm"], Ok(SoundFormat::Pcm));
        check(&["-o", "a.mp3"], Err("expected a file with the extension wav, pcm, flac, opus, found mp3"));
        assert!(Args::try_parse_from(["narthex", "say", "a", "--format", "mp3"]).is_err());
    }

    #[test]
    fn sentences_are_one_file() {
        let sentence = SpeechEvent { sample_rate: 24_000, samples: vec![0.5; 100] };
        let mut encoder = StreamEncoder::new(SoundFormat::Wav);
        let mut file = Vec::new();
        for _ in 0..2 {
            write(&mut encoder, &sentence, &mut file).unwrap();
        }
        assert_eq!(file.len(), 44 + 2 * 200);
        let speech = Pcm { sample_rate: 24_000, samples: vec![0.5; 100] };
        assert_eq!(encode(&speech, SoundFormat::Wav).unwrap(), speech.to_wav());
    }
}
