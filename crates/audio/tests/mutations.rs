//! Damaged files of every format: an error or samples, within bounds of memory and time, and never a panic.
//!
//! The only test of its program, because it counts the program's memory.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{
    fs,
    io::Cursor,
    path::{Path, PathBuf},
};

use narthex_audio::Decoder;
use narthex_testkit::allocator::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Damaged files of each file.
const VARIANTS: u64 = 40;

/// Maximum memory of a decoder in bytes.
const MEMORY: usize = 32 << 20;

/// Maximum number of chunks, of a second each. The files have 0.6 seconds, and a damaged sample rate may stretch them.
const CHUNKS: usize = 30;

#[test]
fn damaged_files_cost_little() {
    let mut errors = 0;
    let mut total = 0;
    for path in fixtures() {
        let file = fs::read(&path).unwrap();
        for seed in 0..VARIANTS {
            let damaged = damaged(&file, seed);
            let before = ALLOCATOR.reset_peak();
            total += 1;
            if let Err(error) = decode(damaged) {
                assert!(error.contains("expected "), "{}, {seed}: {error}", path.display());
                errors += 1;
            }
            let memory = ALLOCATOR.peak() - before;
            assert!(memory < MEMORY, "{}, {seed}: {memory} bytes", path.display());
        }
    }
    assert!(total >= 600, "{total}");
    assert!(errors > total / 4, "{errors} of {total}");
}

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension != "sh"));
    files.sort();
    files
}

fn decode(file: Vec<u8>) -> Result<usize, String> {
    let mut chunks = 0;
    for chunk in Decoder::open(Cursor::new(file)).map_err(|error| error.to_string())? {
        chunk.map_err(|error| error.to_string())?;
        chunks += 1;
        assert!(chunks <= CHUNKS, "more than {CHUNKS} seconds");
    }
    Ok(chunks)
}

/// Returns a file with other bytes: flipped bits, extreme numbers in the header, an early end or a repeated part.
fn damaged(file: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut random = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let mut bytes = file.to_vec();
    let header = file.len().min(400) - 8;
    match seed % 5 {
        0 => bytes.truncate(1 + random(file.len() - 1)),
        1 => {
            let at = random(header);
            let value = [0, 1, 0x7f, 0xff][random(4)];
            bytes[at..at + 4].fill(value);
        }
        2 => {
            let at = random(header);
            let value = [0_u64, 1, u64::from(u32::MAX), i64::MAX as u64, u64::MAX][random(5)];
            bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
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
