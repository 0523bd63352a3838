//! The audio tower of a tiny Gemma 3n, alone and in chats with sounds and pictures, compared with the reference implementation
//! (`gemma3n.py` in `crates/checkpoint/tests/goldens`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use narthex_device::{
    audio::AudioTower,
    ep::Device,
    static_shapes::{Form, StaticAudioTower},
};
use narthex_engine::position::{MediaRows, Position};
use narthex_spec::{Recipe, Scheme, TokenId, Variant, manifest::SoundPlaceholder};

use super::mobilenet::{pictures, reference};
use crate::support::{
    Package, farthest, fixed, runtime,
    towers::{
        self, ON_CPU, check_logits, check_other_medium, check_rows, media, numbers_of, package_of, run,
        scaled, shapes,
    },
};

/// Tokens of the reference. [`SOUND`] stands for a sound and the token after it, [`PICTURE`] for a picture.
const ONE: [TokenId; 9] = [2, 7, 11, 79, SOUND, 40, 41, 9, 33];
const TWO: [TokenId; 10] = [2, 7, 79, SOUND, 40, 5, 79, SOUND, 41, 9];
const BOTH: [TokenId; 10] = [2, 7, 80, PICTURE, 40, 79, SOUND, 41, 9, 33];
const SOUND: TokenId = 1000;
const PICTURE: TokenId = 1001;

/// Mel bins of a frame, and frames of the three sounds.
const BINS: usize = 16;
const FRAMES: [usize; 3] = [157, 157, 61];

/// Rows of a sound, with that of the token after it.
const ROWS: usize = 10 + 1;

fn package(recipe: Recipe) -> Package {
    package_of("gemma3n", recipe)
}

fn tower(package: &Package) -> AudioTower {
    AudioTower::open(runtime(), package.folder.path(), &package.manifest, &Device::Cpu, &towers::OPTIONS)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the features of the three sounds.
fn features() -> [Vec<f32>; 3] {
    let all = numbers_of("gemma3n", "sounds.f32");
    let mut start = 0;
    FRAMES.map(|frames| {
        start += frames * BINS;
        all[start - frames * BINS..start].to_vec()
    })
}

#[test]
fn rows_are_the_reference_s() {
    let expected = numbers_of("gemma3n", "sound_rows.f32");
    for (scheme, bound) in [(Scheme::F32, 1e-5), (Scheme::F16, 4e-3), (Scheme::W8, 0.05), (Scheme::W4, 0.05)]
    {
        let package = package(Recipe::new(scheme));
        let mut tower = tower(&package);
        assert_eq!((tower.rows(), tower.width()), (ROWS, 32));
        for (features, expected) in features().into_iter().zip(expected.chunks_exact(ROWS * 32)) {
            check_rows(&scaled(tower.encode(features).unwrap()), expected, scheme, bound);
        }
    }
}

#[test]
fn rows_of_the_graph_of_fixed_shape_are_the_reference_s() {
    let expected = numbers_of("gemma3n", "sound_rows.f32");
    for (scheme, bound) in [(Scheme::F16, 1e-2), (Scheme::W8, 0.05)] {
        let package = package(Recipe { fixed: Some(shapes(12)), ..Recipe::new(scheme) });
        let folder = package.folder.path();
        let mut tower = StaticAudioTower::open(runtime(), folder, &package.manifest, ON_CPU).unwrap();
        // The longest one first: nothing of it remains in the input of a shorter one.
        for (features, expected) in features().into_iter().zip(expected.chunks_exact(ROWS * 32)) {
            check_rows(&scaled(tower.encode(&features).unwrap()), expected, scheme, bound);
        }
    }
}

#[test]
fn sounds_of_other_lengths_are_refused() {
    let package = package(Recipe::new(Scheme::F32));
    let mut tower = tower(&package);
    for values in [0, BINS - 1, 161 * BINS] {
        let error = tower.encode(vec![0.0; values]).unwrap_err().to_string();
        assert!(error.contains("expected 1 to 160 frames of 16 bins"), "{error}");
    }
    assert_eq!(tower.encode(vec![0.0; BINS]).unwrap().len(), ROWS * 32);
}

#[test]
fn the_manifest_states_the_tower() {
    let package = package(Recipe { fixed: Some(shapes(12)), ..Recipe::new(Scheme::W8) });
    let audio = package.manifest.audio.as_ref().unwrap();
    let variants: Vec<Variant> = audio.graphs.iter().map(|graph| graph.variant).collect();
    assert_eq!(variants, [Variant::Dynamic, Variant::Static]);
    assert_eq!(audio.placeholder, SoundPlaceholder { start: 79, row: 86 });
    let preprocessing = &audio.preprocessing;
    assert_eq!((preprocessing.bins, preprocessing.max_seconds().as_str()), (BINS, "1.63"));
    assert!(package.manifest.unlisted().is_empty());
}

/// Returns the rows of the three sounds.
fn sounds(package: &Package) -> Vec<MediaRows> {
    let mut tower = tower(package);
    media(241, features().into_iter().map(|features| tower.encode(features).unwrap()))
}

/// Returns the positions of a chat whose media are these, in order.
fn positions(tokens: &[TokenId], media: &[MediaRows]) -> Vec<Position> {
    towers::positions(tokens, SOUND.min(PICTURE), media)
}

#[test]
fn a_chat_with_sounds_has_the_reference_s_logits() {
    for (scheme, bound) in [(Scheme::F32, 1e-4), (Scheme::F16, 6e-3), (Scheme::W8, 0.08)] {
        let package = package(Recipe::new(scheme));
        let sounds = sounds(&package);
        let mut executor = package.executor();
        let both = [pictures(&package)[0].clone(), sounds[0].clone()];
        // A step may end within a sound.
        let chats = [
            ("heard.f32", &ONE[..], &sounds[2..], &[19][..]),
            ("heard_two.f32", &TWO[..], &sounds[..2], &[30]),
            ("heard_two.f32", &TWO[..], &sounds[..2], &[5, 12, 13]),
            ("seen_and_heard.f32", &BOTH[..], &both[..], &[24]),
            ("seen_and_heard.f32", &BOTH[..], &both[..], &[4, 1, 10, 9]),
        ];
        for (name, tokens, media, lengths) in chats {
            let expected = reference(name);
            let found = run(&mut executor, &positions(tokens, media), media, lengths).unwrap();
            // The logits within a sound have the errors of its rows in 8 bits. Those after it begin the answer.
            let first = if scheme == Scheme::W8 { found.len() - 1 } else { 0 };
            let chat = format!("{name} {lengths:?}");
            check_logits(&found[first..], &expected[first..], scheme, bound, &chat);
        }
    }
}

#[test]
fn graphs_of_fixed_shape_hear_sounds_as_the_reference() {
    let package = package(Recipe { fixed: Some(shapes(12)), ..Recipe::new(Scheme::F16) });
    let sounds = sounds(&package);
    let mut executor = fixed::open(&package, &Device::Cpu, Form::Graph).unwrap();
    let found = run(&mut executor, &positions(&ONE, &sounds[2..]), &sounds[2..], &[12, 7]).unwrap();
    let farthest = farthest(&found, &reference("heard.f32"));
    assert!(farthest <= 0.03, "{farthest}");
}

#[test]
fn the_other_sound_gives_other_logits() {
    let package = package(Recipe::new(Scheme::F32));
    check_other_medium(&package, &sounds(&package), |media| positions(&ONE, media), 19);
}

#[test]
fn a_smaller_model_keeps_the_tower() {
    let matformer = Some("ffn=32".parse().unwrap());
    let package = package(Recipe { matformer, ..Recipe::new(Scheme::F32) });
    let rows = scaled(tower(&package).encode(features()[0].clone()).unwrap());
    check_rows(&rows, &numbers_of("gemma3n", "sound_rows.f32")[..ROWS * 32], Scheme::F32, 1e-5);
}
