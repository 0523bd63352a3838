//! ONNX Runtime's library that an installer or pip placed together with this program.
//!
//! Archives, the `.deb`, the npm package and the container have it in `lib/narthex` next to `bin`. The wheel depends on
//! `onnxruntime`, whose library is in the same Python environment. Only the pinned version is used.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use super::Pin;

/// Returns the library that was installed with this program.
pub(super) fn library(pin: &Pin) -> Option<PathBuf> {
    // Tools such as pipx link to the program; the library is in the environment of the link's target.
    let program = narthex_files::canonicalize(&env::current_exe().ok()?).ok()?;
    in_prefix(program.parent()?.parent()?, pin)
}

/// Returns the library of an installation in `prefix`, which contains `bin`.
pub(super) fn in_prefix(prefix: &Path, pin: &Pin) -> Option<PathBuf> {
    let member = Path::new(&pin.wheel.library);
    let placed = prefix.join("lib/narthex").join(member.file_name()?);
    if placed.is_file() {
        return Some(placed);
    }
    let version = format!("{}-{}.dist-info", pin.package.name, pin.package.version);
    site_packages(prefix)
        .into_iter()
        .find(|packages| packages.join(&version).is_dir() && packages.join(member).is_file())
        .map(|packages| packages.join(member))
}

/// Returns the folders that may contain Python packages in a prefix.
fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let pythons = fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path());
    let pythons = pythons.filter(|folder| {
        folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
    });
    let windows = ["Lib/site-packages", "site-packages"].map(|name| prefix.join(name));
    // With `pip install --target`, the prefix itself is that folder.
    pythons
        .flat_map(|folder| ["site-packages", "dist-packages"].map(|name| folder.join(name)))
        .chain(windows)
        .chain([prefix.to_path_buf()])
        .collect()
}
