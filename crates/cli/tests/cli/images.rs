//! `narthex chat` with images, videos and sounds, over the tiny Gemma 3 with a vision tower.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{
    path::PathBuf,
    process::{Command, Output},
};

use narthex_audio::Pcm;
use narthex_testkit::checkpoint::{PICTURE_POSITIONS, tiny_gemma_with_vision};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    copy, serve,
    terminal::{CTRL_D, PROMPT, Terminal},
    with_runtime,
};

const MODEL: &str = "local/gemma";

/// A folder with images, and a store with the model.
struct Images {
    folder: TempDir,
}

impl Images {
    fn new() -> Self {
        let images = Self { folder: tempfile::tempdir().unwrap() };
        let files = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures");
        copy(&files, images.folder.path());
        copy(&files.join("../videos"), images.folder.path());
        tiny_gemma_with_vision(&images.folder.path().join("gemma")).unwrap();
        let compiled = images.narthex(&["compile", "--scheme", "f32", "gemma"]).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        images
    }

    fn narthex(&self, args: &[&str]) -> Command {
        let mut command = with_runtime(&self.folder.path().join("store"), args);
        command.current_dir(self.folder.path());
        command
    }

    fn chat(&self, args: &[&str]) -> Output {
        let words = ["chat", "-m", MODEL, "what is it?", "--max-tokens", "2", "--json"];
        self.narthex(&[&words, args].concat()).output().unwrap()
    }

    /// Returns the number of tokens of the prompt.
    fn prompt_tokens(&self, args: &[&str]) -> usize {
        let output = self.chat(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize
    }
}

#[test]
fn a_question_may_be_about_images() {
    let images = Images::new();
    let plain = images.prompt_tokens(&[]);
    let both = ["--image", "rgb.png", "--image", "turned.jpg"];
    assert_eq!(images.prompt_tokens(&both[..2]), plain + PICTURE_POSITIONS);
    assert_eq!(images.prompt_tokens(&both), plain + 2 * PICTURE_POSITIONS);

    let video = ["--video", "parts.gif"];
    assert_eq!(images.prompt_tokens(&video), plain + 4 * PICTURE_POSITIONS);

    // A server that has the model in memory answers.
    let mut server = serve(&mut images.narthex(&["serve", "--port", "0", "--model", MODEL]));
    assert_eq!(images.prompt_tokens(&both), plain + 2 * PICTURE_POSITIONS);
    assert_eq!(images.prompt_tokens(&video), plain + 4 * PICTURE_POSITIONS);
    server.process.kill().unwrap();
    server.process.wait().unwrap();
}

#[test]
fn images_that_cannot_be_read_are_refused_before_a_model_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cat.txt"), "a cat").unwrap();
    copy(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures"), folder.path());
    let check = |model: &str, file: &str, code: i32, expect: &[&str]| {
        let mut command =
            with_runtime(&folder.path().join("store"), &["chat", "-m", model, "--image", file, "?"]);
        let output = command.current_dir(folder.path()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(expect.iter().all(|expect| error.contains(expect)), "{expect:?} are not in {error}");
    };
    check("gemma3:4b", "cat.txt", 2, &["cannot read cat.txt: image: expected a picture (png"]);
    check("gemma3:4b", "no-such.png", 3, &["cannot read no-such.png"]);
    check(
        "smollm2:135m",
        "rgb.png",
        2,
        &["smollm2:135m does not read images", "hint: these models", "gemma3:4b"],
    );
}

#[test]
fn videos_that_cannot_be_read_are_refused_before_a_model_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cat.mp4"), b"\0\0\0\x20ftypisom").unwrap();
    let mut command =
        with_runtime(&folder.path().join("store"), &["chat", "-m", "gemma3n:e2b", "--video", "cat.mp4", "?"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("cannot read cat.mp4: video: expected a video") && error.contains("ffmpeg -i"),
        "{error}"
    );
}

#[test]
fn sounds_that_cannot_be_heard_are_refused_before_a_model_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bird.txt"), "a bird").unwrap();
    let wav = Pcm { sample_rate: 16_000, samples: vec![0.25; 1600] }.to_wav();
    std::fs::write(folder.path().join("bird.wav"), wav).unwrap();
    let check = |model: &str, file: &str, code: i32, expect: &[&str]| {
        let mut command =
            with_runtime(&folder.path().join("store"), &["chat", "-m", model, "--audio", file, "?"]);
        let output = command.current_dir(folder.path()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(expect.iter().all(|expect| error.contains(expect)), "{expect:?} are not in {error}");
    };
    check("gemma3n:e2b", "bird.txt", 2, &["cannot read bird.txt: audio: expected audio (wav"]);
    check("gemma3n:e2b", "no-such.wav", 3, &["cannot read no-such.wav"]);
    check(
        "gemma3:4b",
        "bird.wav",
        2,
        &["gemma3:4b does not read audio", "hint: these models", "gemma3n:e2b"],
    );
}

#[test]
fn an_image_is_attached_in_a_conversation() {
    let images = Images::new();
    let command = images.narthex(&["run", MODEL, "--max-tokens", "2", "--image", "rgb.png"]);
    let mut terminal = Terminal::start(&command, 80);
    let lines = [
        "/image no-such.png",
        "/image 'turned.jpg'",
        "/video fast.webp",
        "what is it?",
        "/regenerate",
        "/save talk.json",
        "/clear",
        "/load talk.json",
        "/save again.json",
    ];
    for line in lines {
        terminal.wait_for(PROMPT);
        terminal.press(&format!("{line}\r"));
        terminal.wait_for(line);
    }
    terminal.wait_for(PROMPT);
    terminal.press(CTRL_D);
    assert_eq!(terminal.end(), 0, "{}", terminal.screen());

    assert!(terminal.screen().contains("error: cannot read no-such.png"), "{}", terminal.screen());
    let read = |file: &str| -> Value {
        serde_json::from_slice(&std::fs::read(images.folder.path().join(file)).unwrap()).unwrap()
    };
    let talk = read("talk.json");
    assert_eq!(talk, read("again.json"));
    let content = talk["messages"][0]["content"].as_array().unwrap();
    let start =
        |part: &Value| part["image_url"]["url"].as_str().unwrap().split(',').next().unwrap().to_owned();
    assert_eq!(start(&content[0]), "data:image/png;base64");
    assert_eq!(start(&content[1]), "data:image/jpeg;base64");
    // The frames of the video.
    assert!(content[2..4].iter().all(|frame| start(frame) == "data:image/png;base64"), "{content:?}");
    assert_eq!(content[4]["text"], "what is it?");
}
