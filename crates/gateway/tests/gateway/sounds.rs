//! Conversations with sounds, over the tiny Gemma 3n whose rows and logits are compared with the reference in the tests of
//! `narthex-device`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::f32::consts::TAU;

use narthex_audio::Pcm;
use narthex_gateway::{
    ErrorKind,
    request::{Media, Part},
};
use narthex_spec::{DeviceName, MediaKind};
use narthex_testkit::checkpoint::{GEMMA3N_PICTURE_POSITIONS, GEMMA3N_SOUND_POSITIONS};

use crate::support::{
    Tiny, ask,
    media::{about, picture, refusal, scores},
};

/// Returns the WAV file of a tone.
fn wav(hertz: f32, milliseconds: usize) -> Vec<u8> {
    let samples = (0..16 * milliseconds).map(|at| 0.4 * (at as f32 * hertz * TAU / 16_000.0).sin());
    Pcm { sample_rate: 16_000, samples: samples.collect() }.to_wav()
}

fn sound(bytes: Vec<u8>) -> Part {
    Part::Media(Media::new(MediaKind::Audio, Some("audio/wav".to_owned()), bytes))
}

fn tone(hertz: f32) -> Part {
    sound(wav(hertz, 1500))
}

#[test]
fn a_sound_is_part_of_the_prompt() {
    let tiny = Tiny::new();
    let model = tiny.gemma3n_chat();
    let gateway = tiny.gateway();
    let plain = ask(&gateway, &model, about([]));
    let first = ask(&gateway, &model, about([tone(440.0)]));
    assert_eq!(first.summary.prompt_tokens, plain.summary.prompt_tokens + GEMMA3N_SOUND_POSITIONS);
    assert_ne!(scores(&first), scores(&plain));

    // A sound of the same length is another prompt with the same tokens, and does not begin with the rows of the first one.
    let other = ask(&gateway, &model, about([tone(1000.0)]));
    assert_eq!(other.summary.prompt_tokens, first.summary.prompt_tokens);
    assert_ne!(scores(&other), scores(&first));
    assert!(other.summary.cached_tokens < GEMMA3N_SOUND_POSITIONS - 10, "{}", other.summary.cached_tokens);

    let again = ask(&gateway, &model, about([tone(440.0)]));
    assert_eq!(scores(&again), scores(&first));
    assert!(again.summary.cached_tokens > GEMMA3N_SOUND_POSITIONS, "{}", again.summary.cached_tokens);
    let both = ask(&gateway, &model, about([tone(440.0), tone(1000.0)]));
    assert_eq!(both.summary.prompt_tokens, plain.summary.prompt_tokens + 2 * GEMMA3N_SOUND_POSITIONS);
    assert_ne!(scores(&both), scores(&ask(&gateway, &model, about([tone(1000.0), tone(440.0)]))));
    // Encoders extend a sound to whole packets, which is not part of it.
    let [longest, extended] =
        [1630, 1680].map(|length| ask(&gateway, &model, about([sound(wav(440.0, length))])));
    assert_eq!(scores(&extended), scores(&longest));
    // Every sound has as many rows, a short one too.
    let short = ask(&gateway, &model, about([sound(wav(440.0, 10))]));
    assert_eq!(short.summary.prompt_tokens, first.summary.prompt_tokens);
    assert_ne!(scores(&short), scores(&first));
}

#[test]
fn pictures_and_sounds_have_any_order() {
    let tiny = Tiny::new();
    let model = tiny.gemma3n_chat();
    let gateway = tiny.gateway();
    let plain = ask(&gateway, &model, about([])).summary.prompt_tokens;
    let answers = [
        [picture("rgb.png"), tone(440.0)],
        [tone(440.0), picture("rgb.png")],
        [picture("rgb.png"), tone(1000.0)],
    ]
    .map(|parts| ask(&gateway, &model, about(parts)));
    for answer in &answers {
        let positions = GEMMA3N_PICTURE_POSITIONS + GEMMA3N_SOUND_POSITIONS;
        assert_eq!(answer.summary.prompt_tokens, plain + positions);
    }
    let [first, second, third] = &answers;
    assert_ne!(scores(first), scores(second));
    assert_ne!(scores(first), scores(third));
    // The third prompt begins as the first one, but its sound is another one.
    assert!(third.summary.cached_tokens < GEMMA3N_PICTURE_POSITIONS + 10, "{}", third.summary.cached_tokens);
}

#[test]
fn sounds_that_cannot_be_read_are_refused() {
    let tiny = Tiny::new();
    let model = tiny.gemma3n_chat();
    let gateway = tiny.gateway();
    let check = |bytes: Vec<u8>, expect: &str| {
        let error = refusal(&gateway, &model, about([sound(bytes)]));
        assert_eq!((error.kind(), error.param()), (ErrorKind::BadRequest, Some("messages")), "{error}");
        assert!(error.to_string().contains(expect), "{error}");
    };
    check(wav(440.0, 1800), "sounds of at most 1.63 seconds");
    check(b"no sound".to_vec(), "expected audio (wav");
    check(Vec::new(), "found an empty file");
    check(wav(440.0, 1500)[..20_000].to_vec(), "complete WAV file");
    check(wav(440.0, 0), "without samples");

    gateway.check_reads(&model, MediaKind::Audio).unwrap();
    gateway.check_reads("gemma3n:e4b", MediaKind::Audio).unwrap();
    let error = gateway.check_reads("gemma3:4b", MediaKind::Audio).unwrap_err();
    assert!(error.to_string().starts_with("gemma3:4b does not read audio"), "{error}");
    assert!(format!("{:?}", error.hint()).contains("gemma3n:e2b"), "{:?}", error.hint());
}

#[test]
fn the_places_of_both_towers_are_reported() {
    let tiny = Tiny::new();
    let model = tiny.gemma3n_chat();
    let gateway = tiny.gateway();
    ask(&gateway, &model, about([]));
    let placement = gateway.status().into_iter().next().unwrap().placement.unwrap();
    let [vision, audio] = placement.towers.as_slice() else { panic!("{:?}", placement.towers) };
    assert_eq!((vision.reads, audio.reads), (MediaKind::Image, MediaKind::Audio));
    assert_eq!((audio.device, audio.lines[0].graph.as_str()), (DeviceName::Cpu, "audio.onnx"));
    assert!(
        audio.nodes() > 10 && audio.weight_bytes > 10_000 && audio.multiply_accumulates > 10_000,
        "{audio:?}"
    );
}
