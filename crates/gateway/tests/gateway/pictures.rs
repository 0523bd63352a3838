//! Conversations with pictures, over the tiny Gemma 3 with a vision tower whose logits are compared with the reference in
//! the tests of `narthex-device`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::{fs, path::PathBuf};

use narthex_gateway::{
    Error, ErrorKind, Gateway,
    request::{ChatRequest, GenerateOptions},
};
use narthex_spec::MediaKind;
use narthex_text::template::{Content, Media, Message, Part, Role};
use serde_json::{Value, json};

use crate::support::{Answer, Tiny, ask, events, greedy, question};

/// Rows of a picture.
const ROWS: usize = 16;

/// Positions of a picture: its rows, a control token on either side, and two line breaks around these.
const PICTURE: usize = ROWS + 2 + 4;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{% if m.content is string %}{{ m.content }}{% else %}\
    {% for part in m.content %}{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}\
    {% endfor %}{% endif %};{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Compiles the tiny Gemma 3 in `f32`. Returns its name.
fn gemma(tiny: &Tiny) -> String {
    let folder = tiny.home().with_file_name("gemma");
    fs::create_dir(&folder).unwrap();
    let goldens = repository("crates/checkpoint/tests/goldens");
    for file in ["config.json", "preprocessor_config.json", "model.safetensors"] {
        fs::copy(goldens.join("vision").join(file), folder.join(file)).unwrap();
    }

    let text = fs::read(goldens.join("families/tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&text).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    for (id, content) in [(80, "<start_of_image>"), (81, "<image_soft_token>"), (82, "<end_of_image>")] {
        added.push(json!({
            "id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false
        }));
    }
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let settings = json!({"chat_template": TEMPLATE, "bos_token": "<2>", "eos_token": "<1>"});
    fs::write(folder.join("tokenizer_config.json"), settings.to_string()).unwrap();
    tiny.compile(folder)
}

fn picture(file: &str) -> Part {
    let bytes = fs::read(repository("crates/image/tests/fixtures").join(file)).unwrap();
    Part::Media(Media::new(MediaKind::Image, None, bytes))
}

fn about(parts: impl IntoIterator<Item = Part>) -> ChatRequest {
    let options = GenerateOptions { logprobs: Some(2), ..greedy(6) };
    let content = parts.into_iter().chain([Part::text("what is it?")]).collect::<Content>();
    ChatRequest { messages: vec![Message::new(Role::User, content)], ..question("", options) }
}

/// Returns the log-probabilities of an answer's tokens.
fn scores(answer: &Answer) -> Vec<Option<f32>> {
    answer.tokens.iter().map(|token| token.logprob).collect()
}

fn refusal(gateway: &Gateway, model: &str, request: ChatRequest) -> Error {
    let (sink, _events) = events();
    gateway.chat(model, request, sink).err().expect("the request is refused")
}

#[test]
fn a_picture_is_part_of_the_prompt() {
    let tiny = Tiny::new();
    let model = gemma(&tiny);
    let gateway = tiny.gateway();
    let plain = ask(&gateway, &model, about([]));
    let first = ask(&gateway, &model, about([picture("rgb.png")]));
    assert_eq!(first.summary.prompt_tokens, plain.summary.prompt_tokens + PICTURE);
    assert_ne!(scores(&first), scores(&plain));

    // A picture of the same size is another prompt, and does not begin with the rows of the first one.
    let other = ask(&gateway, &model, about([picture("turned.png")]));
    assert_eq!(other.summary.prompt_tokens, first.summary.prompt_tokens);
    assert_ne!(scores(&other), scores(&first));
    assert!(other.summary.cached_tokens <= PICTURE - ROWS, "{}", other.summary.cached_tokens);

    let again = ask(&gateway, &model, about([picture("rgb.png")]));
    assert_eq!(scores(&again), scores(&first));
    assert!(again.summary.cached_tokens > ROWS, "{}", again.summary.cached_tokens);
    let both = ask(&gateway, &model, about([picture("rgb.png"), picture("turned.png")]));
    assert_eq!(both.summary.prompt_tokens, plain.summary.prompt_tokens + 2 * PICTURE);
    assert_eq!(scores(&ask(&gateway, &model, about([]))), scores(&plain));
}

#[test]
fn pictures_that_cannot_be_read_are_refused() {
    let tiny = Tiny::new();
    let model = gemma(&tiny);
    let gateway = tiny.gateway();
    let media = |kind, bytes: &[u8]| Part::Media(Media::new(kind, None, bytes.to_vec()));
    let error = refusal(&gateway, &model, about([media(MediaKind::Image, b"GIF89a")]));
    assert_eq!((error.kind(), error.param()), (ErrorKind::BadRequest, Some("messages")), "{error}");
    let error = refusal(&gateway, &model, about([media(MediaKind::Image, b"no picture")])).to_string();
    assert!(error.contains("expected a picture") && error.contains("no picture"), "{error}");
    let error = refusal(&gateway, &model, about([media(MediaKind::Audio, b"RIFF")])).to_string();
    assert!(error.contains("does not read audio"), "{error}");
    // A text that spells the control tokens is a text.
    let spelled = Part::text("<start_of_image><image_soft_token><end_of_image>");
    assert!(ask(&gateway, &model, about([spelled])).summary.prompt_tokens > 0);
}
