//! A tiny Gemma 3 and a tiny Idefics3 with their vision towers, alone and in chats with pictures, compared with the
//! reference implementations (`vision.py` and `idefics3.py` in `crates/checkpoint/tests/goldens`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;

use narthex_device::{
    ep::Device,
    static_shapes::{Form, StaticVisionTower},
    vision::VisionTower,
};
use narthex_engine::{
    executor::Executor,
    position::{MediaRows, Position},
};
use narthex_spec::{
    Recipe, Scheme, TokenId, Variant,
    manifest::{PictureFit, PicturePlaceholder, ResizeFilter},
};

use crate::support::{
    OPTIONS, Package, farthest, fixed, relative, runtime,
    towers::{
        self, ON_CPU, check_logits, check_other_medium, check_rows, golden, media, numbers_of, package_of,
        run, scaled, shapes, vision_tower,
    },
};

/// Tokens of the reference. [`PICTURE`] stands for the rows of a picture.
const ONE: [TokenId; 12] = [2, 7, 11, 80, PICTURE, 82, 40, 41, 9, 33, 12, 70];
const TWO: [TokenId; 13] = [2, 7, 80, PICTURE, 82, 40, 5, 80, PICTURE, 82, 41, 9, 33];
const PICTURE: TokenId = 1000;

/// Number of values of a picture.
const PIXELS: usize = 3 * 32 * 32;

fn numbers(name: &str) -> Vec<f32> {
    numbers_of("vision", name)
}

fn package(recipe: Recipe) -> Package {
    package_of("vision", recipe)
}

#[test]
fn rows_are_the_reference_s() {
    let pixels = numbers("pixels.f32");
    let expected = numbers("rows.f32");
    for (scheme, bound) in [(Scheme::F32, 1e-3), (Scheme::F16, 2e-3), (Scheme::W8, 0.03), (Scheme::W4, 0.03)]
    {
        let package = package(Recipe::new(scheme));
        let mut tower = vision_tower(&package);
        assert_eq!((tower.rows(), tower.width()), (16, 32));
        for (pixels, expected) in pixels.chunks_exact(PIXELS).zip(expected.chunks_exact(16 * 32)) {
            check_rows(&scaled(tower.encode(pixels.to_vec()).unwrap()), expected, scheme, bound);
        }
        let error = tower.encode(vec![0.0; 3]).unwrap_err().to_string();
        assert!(error.contains("expected 3072 values of a picture, found 3"), "{error}");
    }
}

#[test]
fn rows_of_the_graph_of_fixed_shape_are_the_reference_s() {
    let pixels = numbers("pixels.f32");
    let expected = numbers("rows.f32");
    for (scheme, bound) in [(Scheme::F16, 5e-3), (Scheme::W8, 0.03)] {
        let package = package(Recipe { fixed: Some(shapes(12)), ..Recipe::new(scheme) });
        let folder = package.folder.path();
        let mut tower = StaticVisionTower::open(runtime(), folder, &package.manifest, ON_CPU).unwrap();
        check_rows(&scaled(tower.encode(&pixels[PIXELS..]).unwrap()), &expected[16 * 32..], scheme, bound);
        assert!(tower.encode(&[0.0]).is_err());
    }
}

#[test]
fn the_manifest_states_the_tower() {
    let package = package(Recipe { fixed: Some(shapes(12)), ..Recipe::new(Scheme::W8) });
    let vision = package.manifest.vision.as_ref().unwrap();
    let variants: Vec<Variant> = vision.graphs.iter().map(|graph| graph.variant).collect();
    assert_eq!(variants, [Variant::Dynamic, Variant::Static]);
    assert_eq!(vision.placeholder, PicturePlaceholder::Framed { start: 80, row: 81, end: 82 });
    let preprocessing = vision.preprocessing;
    assert_eq!((preprocessing.side, preprocessing.fit), (32, PictureFit::Stretch));
    assert_eq!((preprocessing.filter, preprocessing.mean), (ResizeFilter::Bilinear, [0.5; 3]));
    assert!(package.manifest.unlisted().is_empty());
}

#[test]
fn a_checkpoint_without_the_tower_s_weights_is_a_text_model() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(golden("vision/config.json"), folder.path().join("config.json")).unwrap();
    fs::copy(golden("families/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let bytes = fs::read(golden("vision/model.safetensors")).unwrap();
    let text = String::from_utf8_lossy(&bytes).contains("vision_tower.embeddings");
    assert!(text);
    // Other names of equal length, which no family reads.
    let mut renamed = bytes;
    for at in 0..renamed.len() - 13 {
        if renamed[at..].starts_with(b"\"vision_tower") || renamed[at..].starts_with(b"\"multi_modal_") {
            renamed[at + 1] = b'x';
        }
    }
    fs::write(folder.path().join("model.safetensors"), renamed).unwrap();
    let package = Package::make(folder.path().to_owned(), Recipe::new(Scheme::F32));
    assert_eq!(package.manifest.vision, None);
    let (folder, manifest) = (package.folder.path(), &package.manifest);
    let opened = VisionTower::open(runtime(), folder, manifest, &Device::Cpu, &towers::OPTIONS);
    let error = opened.err().unwrap().to_string();
    assert!(error.contains("expected a decoder with a vision tower, found none"), "{error}");
}

/// Returns the rows of both pictures.
fn pictures(package: &Package) -> Vec<MediaRows> {
    let mut tower = vision_tower(package);
    media(
        221,
        numbers("pixels.f32").chunks_exact(PIXELS).map(|pixels| tower.encode(pixels.to_vec()).unwrap()),
    )
}

/// Returns the positions of a chat.
fn positions(tokens: &[TokenId], pictures: &[MediaRows]) -> Vec<Position> {
    towers::positions(tokens, PICTURE, pictures)
}

/// Returns the logits of the reference.
fn reference(name: &str) -> Vec<Vec<f32>> {
    numbers(name).chunks_exact(84).map(<[f32]>::to_vec).collect()
}

#[test]
fn a_chat_with_pictures_has_the_reference_s_logits() {
    for (scheme, bound) in [(Scheme::F32, 1e-4), (Scheme::F16, 2e-3), (Scheme::W8, 0.06)] {
        let package = package(Recipe::new(scheme));
        let pictures = pictures(&package);
        let mut executor = package.executor();
        assert_eq!(executor.media_width(), Some(32));
        let chats = [("logits.f32", &ONE[..], vec![27]), ("two.f32", &TWO[..], vec![43])];
        for (name, tokens, lengths) in chats {
            let expected = reference(name);
            let positions = positions(tokens, &pictures);
            let found = run(&mut executor, &positions, &pictures, &lengths).unwrap();
            check_logits(&found, &expected, scheme, bound, name);
        }
        // Steps that end before, after or between the pictures.
        let expected = run(&mut executor, &positions(&TWO, &pictures), &pictures, &[43]).unwrap();
        for lengths in [&[3, 16, 24][..], &[2, 19, 1, 1, 18, 2], &[20, 19, 4]] {
            let found = run(&mut executor, &positions(&TWO, &pictures), &pictures, lengths).unwrap();
            let farthest = farthest(&found, &expected);
            assert!(farthest < 1e-5, "{lengths:?} in {scheme}: {farthest}");
        }
        let within = run(&mut executor, &positions(&TWO, &pictures), &pictures, &[9, 34]);
        let error = within.unwrap_err().to_string();
        assert!(error.contains("expected all 16 rows of a medium in one step"), "{error}");
    }
}

#[test]
fn the_other_picture_gives_other_logits() {
    let package = package(Recipe::new(Scheme::F32));
    check_other_medium(&package, &pictures(&package), |media| positions(&ONE, media), 27);
}

#[test]
fn text_without_pictures_is_the_same_in_a_package_with_a_tower() {
    let package = package(Recipe::new(Scheme::W8));
    let pictures = pictures(&package);
    let mut executor = package.executor();
    let text: Vec<Position> = (0..20).map(|i| Position::token(i * 3 + 5)).collect();
    let expected = run(&mut executor, &text, &[], &[20]).unwrap();
    // Pictures of other sequences are in the plan.
    let found = run(&mut executor, &text, &pictures, &[7, 13]).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn graphs_of_fixed_shape_see_pictures_as_the_reference() {
    let package = package(Recipe { fixed: Some(shapes(48)), ..Recipe::new(Scheme::F16) });
    let pictures = pictures(&package);
    let mut executor = fixed::open(&package, &Device::Cpu, Form::Graph).unwrap();
    for (name, tokens, lengths) in [
        ("logits.f32", &ONE[..], &[27][..]),
        ("two.f32", &TWO[..], &[43]),
        ("two.f32", &TWO[..], &[2, 19, 22]),
    ] {
        let found = run(&mut executor, &positions(tokens, &pictures), &pictures, lengths).unwrap();
        let farthest = farthest(&found, &reference(name));
        assert!(farthest <= 0.02, "{name}: {farthest}");
    }
}

#[test]
fn devices_that_cannot_run_a_picture_in_one_step_take_none() {
    let package = package(Recipe { fixed: Some(shapes(12)), ..Recipe::new(Scheme::F16) });
    assert_eq!(fixed::open(&package, &Device::Cpu, Form::Graph).unwrap().media_width(), None);
    let options = narthex_device::dynamic::ExecutorOptions { chunk: 8, ..OPTIONS };
    assert_eq!(package.executor_with(&options).media_width(), None);
}

/// Number of positions of the chat with a picture in tiles.
const TILED: usize = 66;

/// Returns the rows of a picture of two tiles, as one medium.
fn tiled_picture(package: &Package) -> MediaRows {
    let mut tower = vision_tower(package);
    let pixels = numbers_of("idefics3", "pixels.f32");
    let rows = pixels.chunks_exact(PIXELS).flat_map(|pixels| tower.encode(pixels.to_vec()).unwrap());
    MediaRows::new([223; 32], 32, rows.collect::<Vec<f32>>().into()).unwrap()
}

/// Returns the positions of the chat, whose tiles are between the tokens that `idefics3.py` states.
fn tiled_positions(picture: &MediaRows) -> Vec<Position> {
    let mut rows = picture.positions();
    let parts: [&[TokenId]; 4] =
        [&[2, 7, 11, 81, 83], &[81, 84], &[13, 13, 81, 82], &[81, 40, 41, 9, 33, 12, 70]];
    let mut positions = Vec::new();
    for (index, tokens) in parts.into_iter().enumerate() {
        if index > 0 {
            positions.extend(rows.by_ref().take(16));
        }
        positions.extend(Position::of_tokens(tokens));
    }
    assert_eq!((positions.len(), rows.count()), (TILED, 0));
    positions
}

#[test]
fn rows_of_tiles_are_the_reference_s() {
    let expected = numbers_of("idefics3", "rows.f32");
    for (scheme, bound) in [(Scheme::F32, 1e-5), (Scheme::F16, 2e-3), (Scheme::W8, 0.03), (Scheme::W4, 0.03)]
    {
        let package = package_of("idefics3", Recipe::new(scheme));
        let mut tower = vision_tower(&package);
        assert_eq!((tower.rows(), tower.width()), (16, 32));
        let pixels = numbers_of("idefics3", "pixels.f32");
        for (pixels, expected) in pixels.chunks_exact(PIXELS).zip(expected.chunks_exact(16 * 32)) {
            let distance = relative(&tower.encode(pixels.to_vec()).unwrap(), expected);
            assert!(distance <= bound, "{scheme}: {distance}");
        }
    }

    let package = package_of("idefics3", Recipe { fixed: Some(shapes(12)), ..Recipe::new(Scheme::F16) });
    let folder = package.folder.path();
    let mut tower = StaticVisionTower::open(runtime(), folder, &package.manifest, ON_CPU).unwrap();
    let rows = tower.encode(&numbers_of("idefics3", "pixels.f32")[..PIXELS]).unwrap();
    let distance = relative(&rows, &expected[..16 * 32]);
    assert!(distance <= 5e-3, "{distance}");
}

#[test]
fn a_chat_with_tiles_has_the_reference_s_logits() {
    let expected: Vec<Vec<f32>> =
        numbers_of("idefics3", "logits.f32").chunks_exact(96).map(<[f32]>::to_vec).collect();
    for (scheme, bound) in [(Scheme::F32, 1e-4), (Scheme::F16, 2e-3), (Scheme::W8, 0.06)] {
        let package = package_of("idefics3", Recipe::new(scheme));
        let picture = tiled_picture(&package);
        let positions = tiled_positions(&picture);
        let mut executor = package.executor();
        // The rows of a tile see only the positions before them, so that a step may end within a tile.
        for lengths in [&[40, 26][..], &[9, 40, 17]] {
            let found = run(&mut executor, &positions, std::slice::from_ref(&picture), lengths).unwrap();
            let farthest = farthest(&found, &expected);
            assert!(farthest <= bound, "{lengths:?} in {scheme}: {farthest}");
        }
    }

    let package = package_of("idefics3", Recipe { fixed: Some(shapes(12)), ..Recipe::new(Scheme::F16) });
    let picture = tiled_picture(&package);
    let mut executor = fixed::open(&package, &Device::Cpu, Form::Graph).unwrap();
    let lengths = [12, 12, 12, 12, 12, 6];
    let found = run(&mut executor, &tiled_positions(&picture), &[picture], &lengths).unwrap();
    let farthest = farthest(&found, &expected);
    assert!(farthest <= 0.02, "{farthest}");
}

#[test]
fn the_manifest_states_the_tiles() {
    let package = package_of("idefics3", Recipe::new(Scheme::W8));
    let vision = package.manifest.vision.as_ref().unwrap();
    assert_eq!(vision.placeholder, PicturePlaceholder::Tiled { row: 80 });
    let preprocessing = vision.preprocessing;
    assert_eq!((preprocessing.side, preprocessing.fit), (32, PictureFit::Tiles { longest_edge: 64 }));
    assert_eq!((preprocessing.filter, preprocessing.mean), (ResizeFilter::Lanczos, [0.5; 3]));
}
