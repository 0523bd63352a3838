//! A tiny Gemma 3n with its vision tower, alone and in chats with pictures, compared with the reference implementation
//! (`gemma3n.py` in `crates/checkpoint/tests/goldens`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;

use narthex_device::{
    ep::Device,
    static_shapes::{Form, StaticVisionTower},
};
use narthex_engine::{
    executor::Executor,
    position::{MediaRows, Position},
};
use narthex_spec::{
    Recipe, Scheme, TokenId,
    arch::{MobileBlock, Structure, VisionArch},
    manifest::{PictureFit, PicturePlaceholder, ResizeFilter},
};

use crate::support::{
    Package, farthest, fixed, runtime,
    towers::{
        self, ON_CPU, check_logits, check_other_medium, check_rows, golden, media, numbers_of, package_of,
        run, scaled, shapes, vision_tower,
    },
};

/// Tokens of the reference. [`PICTURE`] stands for a picture and the token after it.
const ONE: [TokenId; 11] = [2, 7, 11, 80, PICTURE, 40, 41, 9, 33, 12, 70];
const TWO: [TokenId; 11] = [2, 7, 80, PICTURE, 40, 5, 80, PICTURE, 41, 9, 33];
const PICTURE: TokenId = 1000;

/// Number of values of a picture.
const PIXELS: usize = 3 * 64 * 64;

/// Rows of a picture, with that of the token after it.
const ROWS: usize = 4 + 1;

fn package(recipe: Recipe) -> Package {
    package_of("gemma3n", recipe)
}

#[test]
fn rows_are_the_reference_s() {
    let pixels = numbers_of("gemma3n", "pixels.f32");
    let expected = numbers_of("gemma3n", "rows.f32");
    for (scheme, bound) in [(Scheme::F32, 1e-5), (Scheme::F16, 3e-3), (Scheme::W8, 0.03), (Scheme::W4, 0.03)]
    {
        let package = package(Recipe::new(scheme));
        let mut tower = vision_tower(&package);
        assert_eq!((tower.rows(), tower.width()), (ROWS, 32));
        for (pixels, expected) in pixels.chunks_exact(PIXELS).zip(expected.chunks_exact(ROWS * 32)) {
            check_rows(&scaled(tower.encode(pixels.to_vec()).unwrap()), expected, scheme, bound);
        }
    }
}

#[test]
fn rows_of_the_graph_of_fixed_shape_are_the_reference_s() {
    let pixels = numbers_of("gemma3n", "pixels.f32");
    let expected = numbers_of("gemma3n", "rows.f32");
    for (scheme, bound) in [(Scheme::F16, 1e-2), (Scheme::W8, 0.03)] {
        let package = package(Recipe { fixed: Some(shapes(12)), ..Recipe::new(scheme) });
        let folder = package.folder.path();
        let mut tower = StaticVisionTower::open(runtime(), folder, &package.manifest, ON_CPU).unwrap();
        check_rows(&scaled(tower.encode(&pixels[PIXELS..]).unwrap()), &expected[ROWS * 32..], scheme, bound);
    }
}

#[test]
fn the_manifest_states_the_tower() {
    let package = package(Recipe::new(Scheme::W8));
    let vision = package.manifest.vision.as_ref().unwrap();
    assert_eq!(vision.placeholder, PicturePlaceholder::Opened { start: 80, row: 82 });
    let preprocessing = vision.preprocessing;
    assert_eq!((preprocessing.side, preprocessing.fit), (64, PictureFit::Stretch));
    assert_eq!(preprocessing.filter, ResizeFilter::Bilinear);
    assert_eq!((preprocessing.mean, preprocessing.std), ([0.0; 3], [1.0; 3]));
    assert!(package.manifest.unlisted().is_empty());
    let Structure::Decoder(arch) = &package.manifest.architecture else { panic!("no decoder") };
    let Some(VisionArch::MobileNet(tower)) = arch.vision.as_deref() else { panic!("no MobileNet") };
    assert_eq!(tower.stages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 4, 3]);
    assert_eq!(tower.stages[2][2], MobileBlock::Attention { heads: 3, size: 16, reduction: Some(3) });
}

/// Returns the rows of both pictures.
pub(super) fn pictures(package: &Package) -> Vec<MediaRows> {
    let mut tower = vision_tower(package);
    let pixels = numbers_of("gemma3n", "pixels.f32");
    media(231, pixels.chunks_exact(PIXELS).map(|pixels| tower.encode(pixels.to_vec()).unwrap()))
}

/// Returns the positions of a chat.
fn positions(tokens: &[TokenId], pictures: &[MediaRows]) -> Vec<Position> {
    towers::positions(tokens, PICTURE, pictures)
}

/// Returns the logits of the reference.
pub(super) fn reference(name: &str) -> Vec<Vec<f32>> {
    numbers_of("gemma3n", name).chunks_exact(88).map(<[f32]>::to_vec).collect()
}

#[test]
fn a_chat_with_pictures_has_the_reference_s_logits() {
    for (scheme, bound) in [(Scheme::F32, 1e-4), (Scheme::F16, 4e-3), (Scheme::W8, 0.06)] {
        let package = package(Recipe::new(scheme));
        let pictures = pictures(&package);
        let mut executor = package.executor();
        assert_eq!(executor.media_width(), Some(32));
        // The rows of a picture see only the positions before them, so that a step may end within a picture.
        let chats = [
            ("logits.f32", &ONE[..], &[15][..]),
            ("two.f32", &TWO[..], &[19]),
            ("two.f32", &TWO[..], &[5, 7, 7]),
            ("two.f32", &TWO[..], &[3, 5, 1, 1, 1, 8]),
        ];
        for (name, tokens, lengths) in chats {
            let expected = reference(name);
            let found = run(&mut executor, &positions(tokens, &pictures), &pictures, lengths).unwrap();
            // The logits within a picture have the errors of its rows in 8 bits. Those after it begin the answer.
            let first = if scheme == Scheme::W8 { found.len() - 1 } else { 0 };
            let chat = format!("{name} {lengths:?}");
            check_logits(&found[first..], &expected[first..], scheme, bound, &chat);
        }
    }
}

#[test]
fn smaller_models_keep_the_towers() {
    let pixels = numbers_of("gemma3n", "pixels.f32");
    let expected = numbers_of("gemma3n", "rows.f32");
    let sizes = "ffn=32+32+32,skip=3".parse().unwrap();
    let layers = "2".parse().unwrap();
    for recipe in [
        Recipe { matformer: Some(sizes), ..Recipe::new(Scheme::F32) },
        Recipe { drop_layers: Some(layers), ..Recipe::new(Scheme::F32) },
    ] {
        let package = package(recipe);
        let rows = scaled(vision_tower(&package).encode(pixels[..PIXELS].to_vec()).unwrap());
        check_rows(&rows, &expected[..ROWS * 32], Scheme::F32, 1e-5);
        assert!(package.manifest.audio.is_some());
        let pictures = pictures(&package);
        let found = run(&mut package.executor(), &positions(&ONE, &pictures), &pictures, &[15]).unwrap();
        assert!(found.iter().flatten().all(|logit| logit.is_finite()));
        assert!(farthest(&found, &reference("logits.f32")) > 1e-3, "the smaller model is another model");
    }
}

#[test]
fn graphs_of_fixed_shape_see_pictures_as_the_reference() {
    let package = package(Recipe { fixed: Some(shapes(12)), ..Recipe::new(Scheme::F16) });
    let pictures = pictures(&package);
    let mut executor = fixed::open(&package, &Device::Cpu, Form::Graph).unwrap();
    for (name, tokens, lengths) in
        [("logits.f32", &ONE[..], &[12, 3][..]), ("two.f32", &TWO[..], &[6, 12, 1])]
    {
        let found = run(&mut executor, &positions(tokens, &pictures), &pictures, lengths).unwrap();
        let farthest = farthest(&found, &reference(name));
        assert!(farthest <= 0.03, "{name}: {farthest}");
    }
}

#[test]
fn the_other_picture_gives_other_logits() {
    let package = package(Recipe::new(Scheme::F32));
    check_other_medium(&package, &pictures(&package), |media| positions(&ONE, media), 15);
}

#[test]
fn a_smaller_model_keeps_the_tower() {
    let matformer = Some("ffn=32".parse().unwrap());
    let package = package(Recipe { matformer, ..Recipe::new(Scheme::F32) });
    let pixels = numbers_of("gemma3n", "pixels.f32");
    let rows = scaled(vision_tower(&package).encode(pixels[..PIXELS].to_vec()).unwrap());
    check_rows(&rows, &numbers_of("gemma3n", "rows.f32")[..ROWS * 32], Scheme::F32, 1e-5);
}

#[test]
fn a_checkpoint_without_the_tower_s_weights_is_a_text_model() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(golden("gemma3n/config.json"), folder.path().join("config.json")).unwrap();
    fs::copy(golden("families/tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    // Other names of equal length, which no family reads.
    let mut renamed = fs::read(golden("gemma3n/model.safetensors")).unwrap();
    for at in 0..renamed.len() - 19 {
        if renamed[at..].starts_with(b"\"model.vision_tower") {
            renamed[at + 7] = b'x';
        }
    }
    fs::write(folder.path().join("model.safetensors"), renamed).unwrap();
    let package = Package::make(folder.path().to_owned(), Recipe::new(Scheme::F32));
    assert_eq!(package.manifest.vision, None);
}
