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
use narthex_testkit::{
    allocator::CountingAllocator,
    damage::{Header, damaged},
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Damaged files of each file.
const VARIANTS: u64 = 40;

/// Maximum memory of a decoder in bytes.
const MEMORY: usize = 32 << 20;

/// Maximum number of chunks, of a second each. The files have 0.6 seconds, and a damaged sample rate may stretch them.
const CHUNKS: usize = 30;

/// Headers have sizes in 64 bits, as in mp4.
const HEADER: Header<'_> = Header {
    length: 400,
    filled: 4,
    numbers: &[
        &0_u64.to_be_bytes(),
        &1_u64.to_be_bytes(),
        &(u32::MAX as u64).to_be_bytes(),
        &i64::MAX.to_be_bytes(),
        &u64::MAX.to_be_bytes(),
    ],
};

#[test]
fn damaged_files_cost_little() {
    let mut errors = 0;
    let mut total = 0;
    for path in fixtures() {
        let file = fs::read(&path).unwrap();
        for seed in 0..VARIANTS {
            let damaged = damaged(&file, &HEADER, seed);
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
