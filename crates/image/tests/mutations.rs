//! Damaged files of every format: an error, a picture or frames, within the stated memory, and never a panic.
//!
//! The only test of its program, because it counts the program's memory.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{fs, path::Path};

use narthex_image::{Decoder, MAX_FRAME_PIXELS, Picture, PictureError, VideoReader};
use narthex_testkit::{
    allocator::CountingAllocator,
    damage::{Header, damaged},
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Damaged files of each file.
const VARIANTS: u64 = 40;

/// Maximum memory of the reader of headers in bytes.
const HEADER_MEMORY: u64 = 8 << 20;

/// Maximum memory of the reader of videos for small files in bytes: four pictures of a frame, and what it needs for any size.
const VIDEO_MEMORY: u64 = 16 * MAX_FRAME_PIXELS + HEADER_MEMORY;

/// Headers have sizes in 32 bits, as in bmp.
const HEADER: Header<'_> = Header {
    length: 200,
    filled: 2,
    numbers: &[
        &0_u32.to_le_bytes(),
        &1_u32.to_le_bytes(),
        &5000_u32.to_le_bytes(),
        &i32::MAX.to_le_bytes(),
        &u32::MAX.to_le_bytes(),
    ],
};

#[test]
fn damaged_files_cost_no_more_than_they_state() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut errors = 0;
    let mut total = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = fs::read(&path).unwrap();
        for seed in 0..VARIANTS {
            let damaged = damaged(&file, &HEADER, seed);
            let before = ALLOCATOR.reset_peak();
            let opened = Decoder::open(&damaged);
            let limit = opened.as_ref().map_or(HEADER_MEMORY, Decoder::memory);
            let decoded: Result<Picture, PictureError> = opened.and_then(Decoder::decode);
            let memory = (ALLOCATOR.peak() - before) as u64;
            assert!(memory <= limit, "{}, {seed}: {memory} bytes of {limit}", path.display());
            total += 1;
            if let Err(error) = decoded {
                assert!(error.to_string().contains("expected "), "{}, {seed}: {error}", path.display());
                errors += 1;
            }
        }
    }
    assert!(total >= 800, "{total}");
    assert!(errors > total / 4, "{errors} of {total}");
    damaged_videos();
}

fn damaged_videos() {
    let mut errors = 0;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/videos");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = fs::read(&path).unwrap();
        for seed in 0..VARIANTS {
            let damaged = damaged(&file, &HEADER, seed);
            let before = ALLOCATOR.reset_peak();
            let frames = VideoReader::default().frames(&damaged, &|| false);
            let memory = (ALLOCATOR.peak() - before) as u64;
            assert!(memory <= VIDEO_MEMORY, "{}, {seed}: {memory} bytes", path.display());
            if let Err(error) = frames {
                assert!(error.to_string().contains("expected "), "{}, {seed}: {error}", path.display());
                errors += 1;
            }
        }
    }
    assert!(errors > 50, "{errors}");
}
