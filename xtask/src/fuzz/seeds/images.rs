//! Seeds for files of pictures and videos: those of the tests of `crates/image`, and headers with extreme sizes.

use std::{fs, path::Path};

use anyhow::Context;

use super::Input;

/// Folders of the files, relative to this package.
const PICTURES: &str = "../crates/image/tests/fixtures";
const VIDEOS: &str = "../crates/image/tests/videos";

/// Returns the files of a folder, ordered by their names.
fn files(folder: &str) -> anyhow::Result<Vec<Input>> {
    let mut inputs = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().context("a file has no name")?.to_string_lossy().into_owned();
        inputs.push(Input::valid(&name, fs::read(&path)?));
    }
    inputs.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(inputs)
}

/// Returns the bytes of the file with this name.
fn file(inputs: &[Input], name: &str) -> anyhow::Result<Vec<u8>> {
    let input = inputs.iter().find(|input| input.name == name);
    input.map(|input| input.bytes.clone()).with_context(|| format!("no file {name}"))
}

/// Returns animations, Motion JPEG, and animations with extreme sizes.
pub(super) fn videos() -> anyhow::Result<Vec<Input>> {
    let mut inputs = files(VIDEOS)?;
    let picture = file(&files(PICTURES)?, "grey.jpg")?;
    // Places of the sizes in the headers.
    for (name, start, width) in [("parts.gif", 6, 4), ("parts.png", 16, 8), ("lossless.webp", 24, 6)] {
        for byte in [0x7f, 0xff] {
            let mut bytes = file(&inputs, name)?;
            bytes[start..start + width].fill(byte);
            inputs.push(Input::bomb(&format!("{name}-{byte:02x}"), bytes));
        }
    }
    inputs.push(Input::valid("jpegs.mjpeg", picture.repeat(3)));
    Ok(inputs)
}

/// Returns pictures, and pictures with extreme sizes.
pub(super) fn seeds() -> anyhow::Result<Vec<Input>> {
    let mut inputs = files(PICTURES)?;
    // Places of the sizes in the headers.
    let mut bombs = Vec::new();
    for (name, start, width) in [("plain.bmp", 18, 8), ("first.gif", 6, 4), ("rgb.png", 16, 8)] {
        for byte in [0x00, 0x7f, 0xff] {
            let mut bytes = file(&inputs, name)?;
            bytes[start..start + width].fill(byte);
            bombs.push(Input::bomb(&format!("{name}-{byte:02x}"), bytes));
        }
    }
    let mut jpeg = file(&inputs, "full.jpg")?;
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).context("full.jpg has no frame")?;
    jpeg[frame + 5..frame + 9].fill(0xff);
    bombs.push(Input::bomb("full.jpg-ff", jpeg));
    inputs.extend(bombs);
    Ok(inputs)
}
