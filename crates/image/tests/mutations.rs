//! Damaged files of every format: an error or a picture, within the stated memory, and never a panic.
//!
//! The only test of its program, because it counts the program's memory.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{fs, path::Path};

use narthex_image::{Decoder, Picture, PictureError};
use narthex_testkit::allocator::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Damaged files of each file.
const VARIANTS: u64 = 40;

/// Maximum memory of the reader of headers in bytes.
const HEADER_MEMORY: u64 = 8 << 20;

#[test]
fn damaged_files_cost_no_more_than_they_state() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut errors = 0;
    let mut total = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = fs::read(&path).unwrap();
        for seed in 0..VARIANTS {
            let damaged = damaged(&file, seed);
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
}

/// Returns a file with other bytes: flipped bits, extreme numbers in the header, an early end or a repeated part.
fn damaged(file: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut random = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut bytes = file.to_vec();
    let header = file.len().min(200) - 8;
    match seed % 5 {
        0 => bytes.truncate(1 + random(file.len() - 1)),
        1 => {
            let at = random(header);
            let value = [0, 1, 0x7f, 0xff][random(4)];
            bytes[at..at + 2].fill(value);
        }
        2 => {
            let at = random(header);
            let value = [0_u32, 1, 5000, i32::MAX as u32, u32::MAX][random(5)];
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        3 => {
            let start = random(file.len());
            let end = start + random(file.len() - start);
            bytes.splice(random(file.len()).., file[start..end].iter().copied());
        }
        _ => {
            for _ in 0..=random(12) {
                let at = random(file.len());
                bytes[at] ^= 1 << random(8);
            }
        }
    }
    bytes
}
