//! `narthex transcribe` with imported models, which are tiny and random.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use narthex_audio::Pcm;
use narthex_testkit::sound;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::with_runtime;

fn goldens(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/tests/goldens").join(folder)
}

/// A folder with a recording of two seconds, and a store with a model.
struct Recording {
    folder: TempDir,
    model: &'static str,
}

impl Recording {
    /// Imports a model of the goldens under a name.
    fn new(golden: &str, model: &'static str) -> Self {
        let recording = Self { folder: tempfile::tempdir().unwrap(), model };
        let wav = Pcm { sample_rate: 16_000, samples: sound::voice(32_000) }.to_wav();
        fs::write(recording.folder.path().join("voice.wav"), wav).unwrap();
        let imported = recording.narthex(&["import", goldens(golden).to_str().unwrap(), "--name", model]);
        assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
        recording
    }

    fn narthex(&self, args: &[&str]) -> Output {
        let mut command = with_runtime(&self.folder.path().join("store"), args);
        command.current_dir(self.folder.path()).output().unwrap()
    }

    /// Returns what `transcribe` prints with these arguments.
    fn transcript(&self, args: &[&str]) -> String {
        let output = self.narthex(&[&["transcribe", "-m", self.model, "voice.wav"], args].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Checks that `transcribe` refuses these arguments with a message.
    fn refuses(&self, args: &[&str], expect: &str) {
        let output = self.narthex(&[&["transcribe", "-m", self.model, "voice.wav"], args].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
        assert!(error.contains(expect), "{args:?}: {error} lacks {expect}");
    }
}

#[test]
fn models_of_nemo_transcribe_files() {
    let recording = Recording::new("nemo/tdt", "tdt");
    let lines = recording.transcript(&[]);
    let json = |args: &[&str]| serde_json::from_str::<Value>(&recording.transcript(args)).unwrap();
    let verbose = json(&["--words"]);
    let text = verbose["text"].as_str().unwrap();
    assert!(text.len() > 5, "{text:?}");
    assert_eq!(lines.split_whitespace().collect::<String>(), text.split_whitespace().collect::<String>());
    let words: String =
        verbose["words"].as_array().unwrap().iter().map(|word| word["word"].as_str().unwrap()).collect();
    assert_eq!(words, text.replace(' ', ""));
    assert_eq!(json(&["--format", "json", "--beam-size", "1"])["text"], text);
    assert!(recording.transcript(&["--format", "srt"]).starts_with("1\n00:00:00,"));
    assert!(recording.transcript(&["--format", "vtt"]).starts_with("WEBVTT\n\n00:00:00."));

    recording.refuses(&["--translate"], "tdt transcribes and does not translate");
    recording.refuses(&["--prompt", "Narthex"], "leave the prompt out");
    recording.refuses(&["--beam-size", "5"], "expected 1 beam, found 5");
    recording.refuses(&["--language", "klingon"], "a code such as en");
}

#[test]
fn moonshine_transcribes_files() {
    let recording = Recording::new("moonshine/tiny", "tiny-moonshine");
    let text = recording.transcript(&[]);
    assert!(text.len() > 5, "{text:?}");
    assert!(recording.transcript(&["--format", "srt"]).starts_with("1\n00:00:00,000 --> "));
    recording.refuses(&["--words"], "tiny-moonshine does not state when a word is spoken");
}
