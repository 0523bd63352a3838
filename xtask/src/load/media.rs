//! Requests to models that see, hear and speak: the tiny ones, and a voice.

use anyhow::{Context, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use narthex_audio::Pcm;
use serde_json::{Value, json};
use xtask_tools::http::{self, Disconnect, Request};

use crate::{
    fuzz::{Target, seeds},
    tiny_models::{HEARS, SEES, TRANSCRIPT},
};

/// The voice.
pub(super) const SPEAKS: &str = "hibari";

/// Pictures of the requests.
const PICTURES: [&str; 6] = ["rgb.png", "turned.jpg", "grey.png", "first.gif", "lossy.webp", "plain.bmp"];

/// Frequencies of tones, in Hz.
const TONES: [f32; 6] = [220.0, 330.0, 440.0, 550.0, 660.0, 880.0];

/// Result of a greedy request whose answer is not wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GreedyCheck {
    /// The answer is that to a single client.
    Equal,
    /// The server was full.
    Refused,
}

/// Greedy requests with media, and their answers without other load.
pub(super) struct MediaAnswers {
    /// Bodies of chats about pictures and sounds, with their answers.
    chats: Vec<(String, String)>,
    /// Forms with sounds to transcribe.
    forms: Vec<Vec<u8>>,
}

impl MediaAnswers {
    /// Sends every request, one after another.
    pub(super) fn collect(address: &str) -> anyhow::Result<Self> {
        let mut chats = Vec::new();
        for part in parts()? {
            let body = json!({
                "model": SEES, "max_tokens": 8, "temperature": 0,
                "messages": [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}],
            });
            let body = body.to_string();
            let answer = chat(address, &body)?.context("a single client is refused")?;
            chats.push((body, answer));
        }
        let forms: Vec<Vec<u8>> = TONES.iter().map(|tone| form(*tone)).collect();
        let answers = Self { chats, forms };
        for index in 0..TONES.len() {
            ensure!(
                answers.transcription(address, index)? == GreedyCheck::Equal,
                "a single client is refused"
            );
        }
        Ok(answers)
    }

    /// Sends a chat about a picture or a sound and compares its answer.
    pub(super) fn chat(&self, address: &str, index: usize) -> anyhow::Result<GreedyCheck> {
        let (body, alone) = &self.chats[index % self.chats.len()];
        let Some(found) = chat(address, body)? else { return Ok(GreedyCheck::Refused) };
        ensure!(found == *alone, "expected {alone:?}, as for a single client, found {found:?}");
        Ok(GreedyCheck::Equal)
    }

    /// Sends a sound to be transcribed and compares its transcript.
    pub(super) fn transcription(&self, address: &str, index: usize) -> anyhow::Result<GreedyCheck> {
        let body = &self.forms[index % self.forms.len()];
        let request = Request { method: "POST", path: "/v1/audio/transcriptions", body };
        let answer = http::send(address, request, Disconnect::AfterAnswer)?;
        if answer.status == 429 {
            return Ok(GreedyCheck::Refused);
        }
        let found = answer.json()?["text"].as_str().map(str::to_owned);
        ensure!(found.as_deref() == Some(TRANSCRIPT), "expected {TRANSCRIPT:?}, found {found:?}");
        Ok(GreedyCheck::Equal)
    }
}

/// Returns the answer to a chat; `None` if the server was full.
fn chat(address: &str, body: &str) -> anyhow::Result<Option<String>> {
    let request = Request { method: "POST", path: "/v1/chat/completions", body: body.as_bytes() };
    let answer = http::send(address, request, Disconnect::AfterAnswer)?;
    if answer.status == 429 {
        return Ok(None);
    }
    let value = answer.json()?;
    let text = value["choices"][0]["message"]["content"].as_str();
    text.map(|text| Some(text.to_owned())).with_context(|| format!("expected a text, found {value}"))
}

/// Returns the parts of messages with pictures and sounds.
fn parts() -> anyhow::Result<Vec<Value>> {
    let files = seeds::of(Target::Image)?;
    let mut parts = Vec::new();
    for name in PICTURES {
        let file =
            files.iter().find(|file| file.name == name).with_context(|| format!("no picture {name}"))?;
        let url = format!("data:image/png;base64,{}", STANDARD.encode(&file.bytes));
        parts.push(json!({"type": "image_url", "image_url": {"url": url}}));
    }
    for tone in TONES {
        let data = STANDARD.encode(wav(tone));
        parts.push(json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}));
    }
    Ok(parts)
}

/// Returns the WAV file of a tone of one and a half seconds.
fn wav(hertz: f32) -> Vec<u8> {
    let samples = (0..24_000).map(|at| 0.4 * (at as f32 * hertz * std::f32::consts::TAU / 16_000.0).sin());
    Pcm { sample_rate: 16_000, samples: samples.collect() }.to_wav()
}

/// Returns a form with a tone to transcribe.
fn form(hertz: f32) -> Vec<u8> {
    http::form(&[("model", HEARS.as_bytes()), ("file", &wav(hertz))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_medium_is_there() {
        assert_eq!(parts().unwrap().len(), PICTURES.len() + TONES.len());
        assert!(form(440.0).ends_with(b"--b--\r\n"));
    }
}
