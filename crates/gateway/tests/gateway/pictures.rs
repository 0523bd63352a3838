//! Conversations with pictures, over the tiny Gemma 3 with a vision tower whose logits are compared with the reference in
//! the tests of `narthex-device`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use narthex_gateway::{
    Cancel, Config, ErrorKind, Gateway,
    request::{Media, Part, RemoteMedia},
};
use narthex_image::VideoReader;
use narthex_spec::{DeviceName, MediaKind, progress::Quiet};
use narthex_testkit::checkpoint::{GEMMA3N_PICTURE_POSITIONS, PICTURE_POSITIONS};

use crate::support::{
    Tiny, ask,
    media::{about, picture, refusal, scores},
};

/// Rows of a picture.
const ROWS: usize = 16;

#[test]
fn a_picture_is_part_of_the_prompt() {
    let tiny = Tiny::new();
    let model = tiny.vision_chat();
    let gateway = tiny.gateway();
    let plain = ask(&gateway, &model, about([]));
    let first = ask(&gateway, &model, about([picture("rgb.png")]));
    assert_eq!(first.summary.prompt_tokens, plain.summary.prompt_tokens + PICTURE_POSITIONS);
    assert_ne!(scores(&first), scores(&plain));

    // A picture of the same size is another prompt, and does not begin with the rows of the first one.
    let other = ask(&gateway, &model, about([picture("turned.png")]));
    assert_eq!(other.summary.prompt_tokens, first.summary.prompt_tokens);
    assert_ne!(scores(&other), scores(&first));
    assert!(other.summary.cached_tokens <= PICTURE_POSITIONS - ROWS, "{}", other.summary.cached_tokens);

    let again = ask(&gateway, &model, about([picture("rgb.png")]));
    assert_eq!(scores(&again), scores(&first));
    assert!(again.summary.cached_tokens > ROWS, "{}", again.summary.cached_tokens);
    let both = ask(&gateway, &model, about([picture("rgb.png"), picture("turned.png")]));
    assert_eq!(both.summary.prompt_tokens, plain.summary.prompt_tokens + 2 * PICTURE_POSITIONS);
    assert_eq!(scores(&ask(&gateway, &model, about([]))), scores(&plain));
}

#[test]
fn pictures_that_cannot_be_read_are_refused() {
    let tiny = Tiny::new();
    let model = tiny.vision_chat();
    let gateway = tiny.gateway();
    let media = |kind, bytes: &[u8]| Part::Media(Media::new(kind, None, bytes.to_vec()));
    let error = refusal(&gateway, &model, about([media(MediaKind::Image, b"GIF89a")]));
    assert_eq!((error.kind(), error.param()), (ErrorKind::BadRequest, Some("messages")), "{error}");
    let error = refusal(&gateway, &model, about([media(MediaKind::Image, b"no picture")])).to_string();
    assert!(error.contains("expected a picture") && error.contains("no picture"), "{error}");
    let error = refusal(&gateway, &model, about([media(MediaKind::Audio, b"RIFF")])).to_string();
    assert!(error.contains("does not read audio"), "{error}");
    let remote = RemoteMedia {
        kind: MediaKind::Image,
        url: "http://127.0.0.1:9/a.png".to_owned(),
        param: "messages[0].content[0].image_url.url".to_owned(),
    };
    let addressed = about([Part::Remote(remote)]);
    let error = refusal(&gateway, &model, addressed.clone());
    assert_eq!(
        (error.kind(), error.param()),
        (ErrorKind::BadRequest, Some("messages[0].content[0].image_url.url"))
    );
    assert!(error.to_string().contains("--allow-media-urls"), "{error}");
    let reader = Gateway::open(Config { allow_media_urls: true, ..tiny.config() }).unwrap();
    let error = refusal(&reader, &model, addressed).to_string();
    assert!(error.contains("expected a public address, found 127.0.0.1"), "{error}");
    gateway.check_reads(&model, MediaKind::Image).unwrap();
    let refused = |model: &str, kind| gateway.check_reads(model, kind).unwrap_err().to_string();
    assert!(refused(&model, MediaKind::Audio).contains("does not read audio"));
    assert!(refused("smollm2:135m", MediaKind::Image).starts_with("smollm2:135m does not read images"));
    gateway.check_reads("gemma3:4b", MediaKind::Image).unwrap();
    // A text that spells the control tokens is a text.
    let spelled = Part::text("<start_of_image><image_soft_token><end_of_image>");
    assert!(ask(&gateway, &model, about([spelled])).summary.prompt_tokens > 0);
}

#[test]
fn a_picture_may_be_read_in_tiles() {
    let tiny = Tiny::new();
    let model = tiny.tiled_vision_chat();
    let gateway = tiny.gateway();
    let plain = ask(&gateway, &model, about([]));
    let first = ask(&gateway, &model, about([picture("turned.jpg")]));
    // Two tokens and the rows of each of 2 × 2 tiles, three line breaks, and the whole picture between three tokens.
    let positions = 4 * (2 + ROWS) + 3 + 3 + ROWS;
    assert_eq!(first.summary.prompt_tokens, plain.summary.prompt_tokens + positions);
    assert_ne!(scores(&first), scores(&plain));
    let again = ask(&gateway, &model, about([picture("turned.jpg")]));
    assert_eq!(scores(&again), scores(&first));
    assert!(again.summary.cached_tokens > ROWS, "{}", again.summary.cached_tokens);
    let other = ask(&gateway, &model, about([picture("rgb.png")]));
    assert_ne!(scores(&other), scores(&first));
}

#[test]
fn a_picture_may_end_with_a_row_of_the_tower() {
    let tiny = Tiny::new();
    let model = tiny.gemma3n_chat();
    let gateway = tiny.gateway();
    let plain = ask(&gateway, &model, about([]));
    let first = ask(&gateway, &model, about([picture("rgb.png")]));
    assert_eq!(first.summary.prompt_tokens, plain.summary.prompt_tokens + GEMMA3N_PICTURE_POSITIONS);
    assert_ne!(scores(&first), scores(&plain));
    let again = ask(&gateway, &model, about([picture("rgb.png")]));
    assert_eq!(scores(&again), scores(&first));
    assert!(again.summary.cached_tokens > GEMMA3N_PICTURE_POSITIONS, "{}", again.summary.cached_tokens);
    let other = ask(&gateway, &model, about([picture("turned.png")]));
    assert_ne!(scores(&other), scores(&first));
    assert!(other.summary.cached_tokens < GEMMA3N_PICTURE_POSITIONS, "{}", other.summary.cached_tokens);
    let both = ask(&gateway, &model, about([picture("rgb.png"), picture("turned.png")]));
    assert_eq!(both.summary.prompt_tokens, plain.summary.prompt_tokens + 2 * GEMMA3N_PICTURE_POSITIONS);
    gateway.check_reads("gemma3n:e4b", MediaKind::Image).unwrap();
}

#[test]
fn a_video_is_read_as_its_frames() {
    let tiny = Tiny::new();
    let model = tiny.gemma3n_chat();
    let gateway = tiny.gateway();
    let clip = include_bytes!("../../../image/tests/videos/parts.gif");
    let video = || Part::Media(Media::new(MediaKind::Video, Some("image/gif".to_owned()), clip.to_vec()));
    let frames = VideoReader::default().frames(clip, &|| false).unwrap();
    let frames: Vec<Part> = frames
        .into_iter()
        .map(|frame| Part::Media(Media::new(MediaKind::Image, None, frame.bytes)))
        .collect();
    let plain = ask(&gateway, &model, about([]));
    let first = ask(&gateway, &model, about([video()]));
    let positions = frames.len() * GEMMA3N_PICTURE_POSITIONS;
    assert_eq!(first.summary.prompt_tokens, plain.summary.prompt_tokens + positions);
    assert_eq!(scores(&ask(&gateway, &model, about(frames.clone()))), scores(&first));
    let reversed = ask(&gateway, &model, about(frames.into_iter().rev()));
    assert_eq!(reversed.summary.prompt_tokens, first.summary.prompt_tokens);
    assert_ne!(scores(&reversed), scores(&first));
    let again = ask(&gateway, &model, about([video()]));
    assert_eq!(scores(&again), scores(&first));
    assert!(again.summary.cached_tokens >= positions, "{}", again.summary.cached_tokens);
    gateway.check_reads("gemma3n:e4b", MediaKind::Video).unwrap();
    let refused = gateway.check_reads("smollm2:135m", MediaKind::Video).unwrap_err();
    assert!(refused.to_string().starts_with("smollm2:135m does not read videos"), "{refused}");
}

#[test]
fn the_times_of_the_tower_and_of_questions_are_measured() {
    let tiny = Tiny::new();
    let (model, text) = (tiny.vision_chat(), tiny.chat());
    let gateway = tiny.gateway();
    let report = gateway.bench_pictures(&model, 2, &Quiet, &Cancel::new()).unwrap();
    assert_eq!((report.rows, report.rounds, report.tower.device), (ROWS, 2, DeviceName::Cpu));
    for spread in [report.read_ms, report.first_question_ms, report.next_question_ms, report.text_ms] {
        assert!(spread.min > 0.0 && spread.min <= spread.median && spread.median <= spread.max, "{spread:?}");
    }
    let refused =
        |model: &str, rounds| gateway.bench_pictures(model, rounds, &Quiet, &Cancel::new()).unwrap_err();
    assert!(refused(&text, 1).to_string().contains("does not read images"));
    assert_eq!(refused(&model, 0).param(), Some("rounds"));
}

#[test]
fn the_place_of_the_tower_is_reported() {
    let tiny = Tiny::new();
    let model = tiny.vision_chat();
    let gateway = tiny.gateway();
    ask(&gateway, &model, about([]));
    let status = gateway.status().into_iter().next().unwrap();
    let placement = status.placement.unwrap();
    assert!(placement.lines.iter().all(|line| line.graph != "vision.onnx"));
    let [tower] = placement.towers.as_slice() else { panic!("{:?}", placement.towers) };
    assert_eq!((tower.reads, tower.device), (MediaKind::Image, DeviceName::Cpu));
    assert_eq!((tower.lines.len(), tower.lines[0].graph.as_str()), (1, "vision.onnx"));
    assert!(
        tower.nodes() > 10 && tower.weight_bytes > 10_000 && tower.multiply_accumulates > 10_000,
        "{tower:?}"
    );
}
