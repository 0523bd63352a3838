//! Comparison of models that transcribe speech: a window of synthesised sound is encoded, then the tokens of a reference
//! text and the CPU's own next tokens are read.

use narthex_audio::{SPEECH_RATE, mel};
use narthex_engine::speech::SpeechModel;
use narthex_spec::{TokenId, manifest::SpeechEntry};

use super::{
    STEPS,
    compare::{self, Position},
};
use crate::{cancel::Cancel, error::Error};

/// Seconds of sound of a window. The rest is silence, as in most windows.
const SECONDS: u32 = 12;

/// Runs every text on both models, each with another sound, then the CPU's own next tokens one by one. Calls `compared`
/// after each step. Returns nothing for a model whose windows are not Whisper's, which transcribes nothing.
pub(super) fn compare_speech(
    device: &mut dyn SpeechModel,
    cpu: &mut dyn SpeechModel,
    prompts: &[Vec<TokenId>],
    compared: &dyn Fn(),
    cancel: &Cancel,
) -> Result<Vec<Position>, Error> {
    let mut positions = Vec::new();
    let limits = *cpu.limits();
    let Some(bins) = mel::MelBins::from_count(limits.bins).filter(|_| limits.frames == mel::WINDOW_FRAMES)
    else {
        return Ok(positions);
    };

    let longest = limits.context.min(device.limits().context).saturating_sub(STEPS + 1).max(1);
    for (text, prompt) in prompts.iter().enumerate() {
        cancel.check()?;
        let features = mel::log_mel(&sound(text), bins);
        cpu.encode(&features)?;
        device.encode(&features)?;

        let mut tokens = prompt[..prompt.len().min(longest)].to_vec();
        let mut at = 0;
        for _ in 0..=STEPS {
            cancel.check()?;
            let last = [tokens.len() - 1];
            let expected = cpu.decode(at, &tokens, &last)?.to_vec();
            let found = device.decode(at, &tokens, &last)?;
            at += tokens.len();
            positions.push(Position::new(text, at, &expected, found));
            tokens = vec![compare::best(&expected) as TokenId];
            compared();
        }
    }
    Ok(positions)
}

/// Returns texts as the transcripts that follow the model's control tokens.
pub(super) fn transcripts(speech: &SpeechEntry, texts: &[Vec<TokenId>]) -> Vec<Vec<TokenId>> {
    let language = speech.languages.values().next().copied();
    let control: Vec<TokenId> = [Some(speech.start), language, speech.transcribe, Some(speech.no_timestamps)]
        .into_iter()
        .flatten()
        .collect();
    texts.iter().map(|text| [&control[..], text].concat()).collect()
}

/// Returns the samples of a sound like a voice: overtones of a pitch that glides, in syllables. Each index has its own
/// pitch.
fn sound(index: usize) -> Vec<f32> {
    let rate = f64::from(SPEECH_RATE);
    let pitch = 110.0 + 45.0 * index as f64;
    let mut phase = 0.0;
    let samples = (0..SECONDS * SPEECH_RATE).map(|sample| {
        let time = f64::from(sample) / rate;
        let circle = std::f64::consts::TAU;
        phase += circle * pitch * (1.0 + 0.2 * (circle * 0.7 * time).sin()) / rate;
        let voice: f64 =
            (1..=20).map(|overtone| (phase * f64::from(overtone)).sin() / f64::from(overtone)).sum();
        let syllable = (circle * 2.0 * time).sin().max(0.0);
        (0.2 * voice * syllable) as f32
    });
    samples.collect()
}
