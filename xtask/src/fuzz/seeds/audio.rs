//! Seeds for files of sound: those of the tests of `crates/audio`, and WAV files with extreme numbers.

use std::{fs, path::Path};

use anyhow::Context;
use narthex_audio::Pcm;

use super::Input;

/// Folder of the files, relative to this package.
const FILES: &str = "../crates/audio/tests/fixtures";

pub(super) fn seeds() -> anyhow::Result<Vec<Input>> {
    let mut inputs = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILES);
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension == "sh") {
            continue;
        }
        let name = path.file_name().context("a file has no name")?.to_string_lossy().into_owned();
        inputs.push(Input::valid(&name, fs::read(&path)?));
    }
    inputs.sort_by(|left, right| left.name.cmp(&right.name));

    let wav = Pcm { sample_rate: 16_000, samples: vec![0.25; 256] }.to_wav();
    inputs.push(Input::valid("silence.wav", wav.clone()));
    // Places of the numbers in the header, and their widths.
    let fields = [
        ("riff-size", 4, 4),
        ("format-size", 16, 4),
        ("encoding", 20, 2),
        ("channels", 22, 2),
        ("rate", 24, 4),
        ("byte-rate", 28, 4),
        ("block", 32, 2),
        ("bits", 34, 2),
        ("data-size", 40, 4),
    ];
    for (name, start, width) in fields {
        for byte in [0x00, 0xff] {
            let mut bytes = wav.clone();
            bytes[start..start + width].fill(byte);
            inputs.push(Input::bomb(&format!("{name}-{byte:02x}"), bytes));
        }
    }
    Ok(inputs)
}
