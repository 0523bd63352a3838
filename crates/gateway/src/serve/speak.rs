//! Speech: from a text to sentences to samples.

use std::ops::ControlFlow;

use narthex_catalog::resolve::excerpt;
use narthex_spec::arch::Structure;
use narthex_speech::utterance::{plain_sentences, utterances};

use crate::{
    cancel::Cancel,
    error::Error,
    library::package::bad_package,
    load::{
        residency::ReadyModel,
        voice::{Run, accent, is_english, speaker},
    },
    serve::{
        options::unique_number,
        request::{MAX_SPOKEN_TEXT, SpeechEvent, SpeechRequest, SpeechSummary},
    },
};

/// Lowest and highest factor of the speed.
const SPEEDS: [f32; 2] = [0.25, 4.0];

/// Maximum number of voices in a message.
const MAX_NAMED: usize = 12;

impl ReadyModel {
    /// Speaks a text. Each sentence is passed to `on` as soon as it is computed. Ends with [`Error::Cancelled`] once `cancel`
    /// is set or `on` returns `Break`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a text that is empty, too long or without words, for an unknown voice and for a speed outside
    /// 0.25 to 4; [`Error::WrongKind`] for a model that is no voice.
    pub fn speak(
        &self,
        request: &SpeechRequest,
        on: &mut dyn FnMut(SpeechEvent) -> ControlFlow<()>,
        cancel: &Cancel,
    ) -> Result<SpeechSummary, Error> {
        let model = &*self.loaded;
        let queue = model.voice()?;
        let SpeechRequest { voice, speed, seed, text, .. } = request;
        check(text, *speed)?;
        let manifest = &model.package.manifest;
        let Some(speaker) = speaker(manifest, voice.as_deref()) else {
            let entry = manifest.voice.iter().flat_map(|entry| &entry.speakers);
            let names: Vec<&str> = entry.map(|speaker| speaker.name.as_str()).take(MAX_NAMED).collect();
            let found = excerpt(voice.as_deref().unwrap_or_default());
            let message =
                format!("expected a voice of {}: {}; found {found:?}", model.name(), names.join(", "));
            return Err(Error::invalid("voice", message));
        };

        let queued = queue.enter(cancel)?;
        let sentences = if is_english(&speaker.language) {
            utterances(text, accent(&speaker.language))
        } else {
            plain_sentences(text)
        };
        let sample_rate = match &manifest.architecture {
            Structure::ImportedVoice(voice) => voice.sample_rate,
            _ => return Err(bad_package(&model.package.key, "it is not a voice")),
        };
        let seed = seed.unwrap_or_else(unique_number);
        let mut summary = SpeechSummary {
            voice: speaker.name.clone(),
            sample_rate,
            sentences: 0,
            samples: 0,
            ran_on: model.ran_on(),
        };
        for (sentence, place) in sentences.iter().zip(0u64..) {
            let seed = seed.wrapping_add(place);
            let run = Run { speaker, speed: *speed, seed };
            let samples = queued.turn(|voice| voice.speak(sentence, run, cancel))?;
            if samples.is_empty() {
                continue;
            }
            summary.sentences += 1;
            summary.samples += samples.len();
            if on(SpeechEvent { sample_rate, samples }).is_break() {
                return Err(Error::Cancelled);
            }
        }
        if summary.sentences == 0 {
            let language = &speaker.language;
            let message = format!("expected words that a voice for {language} can read, found none");
            return Err(Error::invalid("input", message));
        }
        Ok(summary)
    }
}

/// Checks a text and a speed.
fn check(text: &str, speed: f32) -> Result<(), Error> {
    let [slowest, fastest] = SPEEDS;
    if !(slowest..=fastest).contains(&speed) {
        let message = format!("expected a number from {slowest} to {fastest}, found {speed}");
        return Err(Error::invalid("speed", message));
    }
    if text.trim().is_empty() {
        return Err(Error::invalid("input", "expected a text, found an empty one".to_owned()));
    }
    if text.len() > MAX_SPOKEN_TEXT {
        let found = text.len();
        let message =
            format!("expected at most {MAX_SPOKEN_TEXT} bytes of text, found {found}; divide the text");
        return Err(Error::invalid("input", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_speeds_have_limits() {
        let check = |text: &str, speed: f32, expect: &str| {
            let found = check(text, speed).map_or_else(|error| error.to_string(), |()| String::new());
            assert!(found.contains(expect) && found.is_empty() == expect.is_empty(), "{found}");
        };
        check("Hello.", 0.25, "");
        check("Hello.", 4.0, "");
        check("Hello.", 4.1, "expected a number from 0.25 to 4, found 4.1");
        check("Hello.", f32::NAN, "found NaN");
        check(" \n", 1.0, "expected a text, found an empty one");
        check(&"x".repeat(MAX_SPOKEN_TEXT + 1), 1.0, "expected at most 131072 bytes of text, found 131073");
    }
}
