//! Decoded files, frames of videos and values for towers, against Pillow and `transformers` (`goldens/pictures.py`,
//! `goldens/videos.py`).

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{collections::BTreeMap, fs, path::PathBuf};

use narthex_image::{Decoder, Picture, VideoReader, preprocess, tiles};
use narthex_spec::manifest::{PictureFit, PicturePreprocessing, ResizeFilter};
use serde_json::Value;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn golden(name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder("goldens").join(name)).unwrap()).unwrap()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

/// Returns the largest and the mean difference of a file's pixels to those that Pillow decodes.
fn differences(name: &str, expect: &Value) -> [f64; 2] {
    let bytes = fs::read(folder("fixtures").join(name)).unwrap();
    let picture =
        Decoder::open(&bytes).and_then(Decoder::decode).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(
        [picture.width(), picture.height()],
        ["width", "height"].map(|key| number(&expect[key])),
        "{name}"
    );
    let mut all = Vec::new();
    for (y, row) in expect["rows"].as_object().unwrap() {
        let row = row.as_str().unwrap();
        let start = y.parse::<usize>().unwrap() * picture.width() * 3;
        for (at, found) in picture.rgb()[start..][..picture.width() * 3].iter().enumerate() {
            let wanted = u8::from_str_radix(&row[2 * at..][..2], 16).unwrap();
            all.push(f64::from(found.abs_diff(wanted)));
        }
    }
    assert!(all.len() >= 4 * 3 * 30, "{name}: {} values", all.len());
    [all.iter().copied().fold(0.0, f64::max), all.iter().sum::<f64>() / all.len() as f64]
}

/// Returns the largest and the mean difference that decoders of lossy formats, which round differently, may have.
fn lossy(name: &str) -> [f64; 2] {
    match name {
        "cmyk.jpg" | "progressive.jpg" | "lossy.webp" => [4.0, 1.0],
        name if name.ends_with(".jpg") => [2.0, 0.3],
        _ => [0.0, 0.0],
    }
}

#[test]
fn files_are_decoded_as_by_pillow() {
    let expect: BTreeMap<String, Value> = serde_json::from_value(golden("decoded.json")).unwrap();
    assert_eq!(expect.len(), fs::read_dir(folder("fixtures")).unwrap().count());
    for (name, expect) in expect {
        let [largest, mean] = differences(&name, &expect);
        let limits = lossy(&name);
        assert!(largest <= limits[0] && mean <= limits[1], "{name}: {largest} at most, {mean} on average");
    }
}

/// Returns the pixels that `pictures.py` generates.
fn pixels(width: usize, height: usize) -> Picture {
    let mut state: u32 = 1;
    let mut rgb = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            for channel in 0..3 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let slope = (x * (channel + 2) + y * (5 - channel)) % 256;
                let edge = if (x / 8 + y / 6) % 2 == 1 { 90 } else { 0 };
                rgb.push((slope / 2 + edge + (state >> 28) as usize).min(255) as u8);
            }
        }
    }
    Picture::new(width, height, rgb).unwrap()
}

/// Returns the largest and the mean difference of a picture's values to those of a processor.
fn distance(picture: &Picture, case: &Value, name: &str) -> [f32; 2] {
    let (fit, filter) = match case["fit"].as_str().unwrap() {
        "siglip" => (PictureFit::Stretch, ResizeFilter::Bicubic),
        "gemma3" => (PictureFit::Stretch, ResizeFilter::Bilinear),
        _ => (PictureFit::Tiles { longest_edge: number(&case["longest"]) }, ResizeFilter::Lanczos),
    };
    let spec = PicturePreprocessing {
        side: number(&case["side"]),
        fit,
        filter,
        rescale: 1.0 / 255.0,
        mean: [0.5; 3],
        std: [0.5; 3],
    };

    let found = preprocess(picture, &spec);
    assert_eq!([found.rows, found.columns], ["rows", "columns"].map(|key| number(&case[key])), "{name}");
    assert_eq!(tiles([picture.width(), picture.height()], &spec), [found.rows, found.columns], "{name}");
    assert_eq!(found.inputs.len(), number(&case["inputs"]), "{name}");
    let flat = found.inputs.concat();
    let expect = case["values"].as_array().unwrap();
    let sampled = flat.iter().step_by(number(&case["step"]));
    assert_eq!(sampled.len(), expect.len(), "{name}");
    let distances: Vec<f32> =
        sampled.zip(expect).map(|(found, expect)| (found - expect.as_f64().unwrap() as f32).abs()).collect();
    [distances.iter().copied().fold(0.0, f32::max), distances.iter().sum::<f32>() / distances.len() as f32]
}

#[test]
fn values_are_those_of_transformers() {
    let cases = golden("processed.json");
    for case in cases.as_array().unwrap() {
        let [width, height] = ["width", "height"].map(|key| number(&case[key]));
        let name = format!("{} {width} x {height}", case["fit"]);
        let [largest, _] = distance(&pixels(width, height), case, &name);
        assert!(largest < 1e-4, "{name}: {largest}");
    }
}

#[test]
fn files_become_the_values_of_transformers() {
    let cases = golden("read.json");
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 2 * fs::read_dir(folder("fixtures")).unwrap().count());
    for case in cases {
        let file = case["file"].as_str().unwrap();
        let name = format!("{file} as in {}", case["fit"]);
        let bytes = fs::read(folder("fixtures").join(file)).unwrap();
        let picture = Decoder::open(&bytes).and_then(Decoder::decode).unwrap();
        let [largest, mean] = distance(&picture, case, &name);
        // Pillow 13 resizes the columns of tall pictures first, which rounds otherwise.
        let order = if picture.height() > picture.width() { [1.0, 0.3] } else { [0.0; 2] };
        // A level of a pixel is 2 / 255 in the values.
        let limit = |at: usize| (lossy(file)[at] + order[at]) as f32 * 2.0 / 255.0 + 1e-4;
        let is_near = largest <= limit(0) && mean <= limit(1);
        assert!(is_near, "{name}: {largest} at most, {mean} on average");
    }
}

#[test]
fn frames_of_videos_are_those_that_pillow_shows_at_each_second() {
    let golden: BTreeMap<String, Value> = serde_json::from_value(golden("videos.json")).unwrap();
    assert_eq!(golden.len(), fs::read_dir(folder("videos")).unwrap().count());
    for (name, expect) in golden {
        let file = fs::read(folder("videos").join(&name)).unwrap();
        let frames = VideoReader::default().frames(&file, &|| false).unwrap();
        let expect = expect.as_array().unwrap();
        assert_eq!(frames.len(), expect.len(), "{name}");
        for (frame, expect) in frames.iter().zip(expect) {
            assert_eq!(frame.media_type, "image/png");
            let picture = Decoder::open(&frame.bytes).and_then(Decoder::decode).unwrap();
            for (y, row) in expect["rows"].as_object().unwrap() {
                let start = y.parse::<usize>().unwrap() * picture.width() * 3;
                let found = picture.rgb()[start..][..picture.width() * 3].iter();
                let row = row.as_str().unwrap().as_bytes().chunks_exact(2);
                let row = row.map(|digits| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap());
                let largest = found.zip(row).map(|(found, expect)| found.abs_diff(expect)).max().unwrap();
                // The decoder of WebP rounds down where it blends frames.
                let limit = u8::from(name.ends_with(".webp"));
                assert!(largest <= limit, "{name} at {} ms, row {y}: {largest}", expect["time"]);
            }
        }
    }
}
