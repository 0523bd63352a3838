//! Pictures and videos in every protocol, over a tiny model with a vision tower.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::{fs, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use narthex_testkit::checkpoint::PICTURE_POSITIONS;
use serde_json::{Value, json};

use crate::support::{Live, Tiny, with};

/// Frames that are taken of `parts.gif`.
const FRAMES: usize = 4;

/// A request about media.
struct Asked {
    path: &'static str,
    body: Value,
    /// Places of the number of tokens of the prompt in the answer.
    counts: &'static [&'static str],
}

impl Asked {
    /// Returns the number of tokens of the prompt.
    fn tokens(&self, live: &Live) -> usize {
        let answer = live.post(self.path, &self.body);
        let body = answer.json();
        assert_eq!(answer.status, 200, "{}: {body}", self.path);
        let counts = self.counts.iter().map(|place| body.pointer(place).and_then(Value::as_u64));
        counts.map(|count| count.unwrap_or_else(|| panic!("{}: {body}", self.path)) as usize).sum()
    }
}

/// Returns a file of the tests of `narthex-image` in base64.
fn file(name: &str) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/tests");
    BASE64.encode(fs::read(tests.join(name)).unwrap())
}

fn user(content: Value) -> Value {
    json!([{"role": "user", "content": content}])
}

/// Returns a question about a picture in every protocol and form; without one, the same questions about nothing.
fn questions(model: &str, picture: Option<&str>) -> Vec<Asked> {
    let url = picture.map(|picture| format!("data:image/png;base64,{picture}"));
    let parts = |seen: Value, text: &str| {
        let seen = url.iter().map(|_| seen.clone());
        user(seen.chain([json!({"type": text, "text": "what?"})]).collect())
    };
    let source = json!({"type": "base64", "media_type": "image/png", "data": picture});
    let anthropic = json!({"model": model, "max_tokens": 1, "messages": parts(json!({"type": "image", "source": source}), "text")});
    let mut ollama = user(json!("what?"));
    ollama[0]["images"] = picture.into_iter().collect();
    let ollama_body =
        |fields: Value| with(json!({"model": model, "stream": false, "options": {"num_predict": 1}}), fields);

    let mut asked = Vec::new();
    for part in [
        json!({"type": "image_url", "image_url": {"url": url, "detail": "high"}}),
        json!({"type": "file", "file": {"filename": "a.png", "file_data": url}}),
    ] {
        let body = json!({"model": model, "max_tokens": 1, "messages": parts(part, "text")});
        asked.push(Asked { path: "/v1/chat/completions", body, counts: &["/usage/prompt_tokens"] });
    }
    for part in [
        json!({"type": "input_image", "image_url": url, "detail": "auto"}),
        json!({"type": "input_file", "filename": "a.png", "file_data": url}),
    ] {
        let input = parts(part, "input_text");
        let body = json!({"model": model, "max_output_tokens": 1, "input": input});
        asked.push(Asked { path: "/v1/responses", body, counts: &["/usage/input_tokens"] });
        let body = json!({"model": model, "input": input});
        asked.push(Asked { path: "/v1/responses/input_tokens", body, counts: &["/input_tokens"] });
    }
    let counts = &["/usage/input_tokens", "/usage/cache_read_input_tokens"];
    asked.push(Asked { path: "/v1/messages", body: anthropic.clone(), counts });
    asked.push(Asked { path: "/v1/messages/count_tokens", body: anthropic, counts: &["/input_tokens"] });
    let counts = &["/prompt_eval_count"];
    asked.push(Asked { path: "/api/chat", body: ollama_body(json!({"messages": ollama})), counts });
    let generate = ollama_body(json!({"prompt": "what?", "images": ollama[0]["images"]}));
    asked.push(Asked { path: "/api/generate", body: generate, counts });
    asked
}

#[test]
fn the_rows_of_a_picture_count_as_tokens_in_every_protocol() {
    let tiny = Tiny::new();
    let model = tiny.vision_chat();
    let live = Live::start(tiny.config());
    let picture = file("fixtures/rgb.png");
    for (seen, plain) in questions(&model, Some(&picture)).iter().zip(questions(&model, None)) {
        let path = seen.path;
        assert_eq!(seen.tokens(&live), plain.tokens(&live) + PICTURE_POSITIONS, "{path}");
        // The rows of a prompt that is in memory count too.
        assert_eq!(seen.tokens(&live), plain.tokens(&live) + PICTURE_POSITIONS, "{path}");
    }
}

/// Returns the logarithms of the probabilities of each choice.
fn scores(answer: &Value) -> Vec<Vec<f64>> {
    let choices = answer["choices"].as_array().unwrap().iter();
    let scores = choices.map(|choice| {
        let tokens = choice["logprobs"]["content"].as_array().unwrap().iter();
        tokens.map(|token| token["logprob"].as_f64().unwrap()).collect()
    });
    scores.collect()
}

#[test]
fn choices_are_about_the_picture_of_their_request() {
    let tiny = Tiny::new();
    let model = tiny.vision_chat();
    let live = Live::start(tiny.config());
    let ask = |picture: &str, n: usize| {
        let url = format!("data:image/png;base64,{}", file(picture));
        let body = json!({
            "model": model, "max_tokens": 4, "temperature": 0, "logprobs": true, "n": n,
            "messages": user(json!([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}])),
        });
        live.post("/v1/chat/completions", &body).json()
    };
    // Pictures of one size, so that the tokens of both prompts are equal.
    let pictures = ["fixtures/rgb.png", "fixtures/grey.png"];
    let alone = pictures.map(|picture| ask(picture, 1));
    let [first, second] = alone.each_ref().map(scores);
    assert_eq!(alone[0]["usage"]["prompt_tokens"], alone[1]["usage"]["prompt_tokens"]);
    assert_ne!(first, second);
    for (picture, single) in pictures.iter().zip([first, second]) {
        let answer = ask(picture, 3);
        assert_eq!(scores(&answer), [&single[..]; 3].concat(), "{picture}");
        assert_eq!(answer["usage"]["prompt_tokens"], alone[0]["usage"]["prompt_tokens"]);
    }
}

#[test]
fn the_frames_of_a_video_are_pictures() {
    let tiny = Tiny::new();
    let model = tiny.vision_chat();
    let live = Live::start(tiny.config());
    let ask = |parts: &[Value]| {
        let content: Vec<Value> =
            parts.iter().cloned().chain([json!({"type": "text", "text": "what?"})]).collect();
        let body = json!({"model": model, "max_tokens": 1, "messages": user(content.into())});
        live.post("/v1/chat/completions", &body)
    };
    let tokens = |parts: &[Value]| {
        let answer = ask(parts);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["usage"]["prompt_tokens"].as_u64().unwrap() as usize
    };
    let plain = tokens(&[]);
    let clip = file("videos/parts.gif");
    let picture = file("fixtures/grey.jpg");
    for (part, frames) in [
        (json!({"type": "video_url", "video_url": {"url": format!("data:image/gif;base64,{clip}")}}), FRAMES),
        (json!({"type": "input_video", "input_video": {"data": clip, "format": "gif"}}), FRAMES),
        // The first picture of the file.
        (json!({"type": "image_url", "image_url": {"url": format!("data:image/gif;base64,{clip}")}}), 1),
        (
            json!({"type": "video_url", "video_url": {"url": format!("data:video/jpeg;base64,{picture},{picture}")}}),
            2,
        ),
    ] {
        assert_eq!(tokens(std::slice::from_ref(&part)), plain + frames * PICTURE_POSITIONS, "{part}");
    }

    let mp4 = BASE64.encode(b"\0\0\0\x20ftypisom");
    let refused =
        ask(&[json!({"type": "video_url", "video_url": {"url": format!("data:video/mp4;base64,{mp4}")}})]);
    let error = refused.error(400);
    assert_eq!(error["param"], "messages");
    assert!(
        error["message"].as_str().unwrap().contains("found an MP4 or QuickTime file; convert it"),
        "{error}"
    );
    let remote = ask(&[json!({"type": "video_url", "video_url": {"url": "https://host/a.gif"}})]).error(400);
    assert!(remote["message"].as_str().unwrap().contains("--allow-media-urls"), "{remote}");

    let blind = tiny.chat();
    let part = json!({"type": "video_url", "video_url": {"url": format!("data:image/gif;base64,{clip}")}});
    let body = json!({"model": blind, "messages": user(json!([part]))});
    let error = live.post("/v1/chat/completions", &body).error(400);
    let expect = format!("{blind} does not read videos, but the conversation has some");
    assert!(error["message"].as_str().unwrap().starts_with(&expect), "{error}");
}
