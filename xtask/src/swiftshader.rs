//! SwiftShader, a GPU in software, for `cargo xtask npu`: the driver from Debian's Chromium, and an ONNX Runtime with
//! WebGPU. Both are kept under `target/swiftshader`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use xtask_tools::{
    process::{self, works},
    python::Python,
    session::Session,
};

/// The pinned runtime with its digest.
const RUNTIME: &str = "onnxruntime-webgpu==1.27.0 \
    --hash=sha256:fe5e49e00ad71bc667316d57670bfbf525438783d4a3468e0d337314ec985cbe";

/// Options of pip that select one file, for an interpreter other than this machine's.
const FILE_OPTIONS: [&str; 7] = [
    "--only-binary=:all:",
    "--platform",
    "manylinux_2_28_x86_64",
    "--python-version",
    "3.12",
    "--abi",
    "cp312",
];

/// Debian's packages: the driver, and the library that loads drivers.
const DEBIAN: [&str; 2] = ["chromium-common", "libvulkan1"];

/// Environment variables for tests on SwiftShader.
pub(crate) type Variables = Vec<(&'static str, PathBuf)>;

/// Downloads the driver and the runtime if they are missing. Returns `None` on machines without Debian's packages for
/// x86-64.
pub(crate) fn prepare(session: &Session<'_>) -> anyhow::Result<Option<Variables>> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) || !works(session.command("apt-get").arg("-v"))
    {
        return Ok(None);
    }
    let folder = session.workspace.target.join("swiftshader");
    if !folder.is_dir() {
        fetch(session, &folder)?;
    }
    let driver = folder.join("usr/lib/chromium/vk_swiftshader_icd.json");
    Ok(Some(vec![
        ("LD_LIBRARY_PATH", folder.join("usr/lib/x86_64-linux-gnu")),
        ("ORT_DYLIB_PATH", folder.join("onnxruntime/capi/libonnxruntime.so.1.27.0")),
        ("NARTHEX_SWIFTSHADER", driver.clone()),
        ("VK_DRIVER_FILES", driver),
    ]))
}

fn fetch(session: &Session<'_>, folder: &Path) -> anyhow::Result<()> {
    let python = Python::find(session)?;
    let scratch = tempfile::tempdir_in(&session.workspace.target)?;
    let whole = scratch.path().join("whole");
    fs::create_dir(&whole)?;
    python.download(session, RUNTIME, &FILE_OPTIONS, scratch.path())?;
    let mut apt = session.command("apt-get");
    process::run(apt.args(["download", "--quiet"]).args(DEBIAN).current_dir(scratch.path()))?;
    for entry in fs::read_dir(scratch.path())?.flatten() {
        let path = entry.path();
        let (mut unpack, arguments): (Command, &[&str]) =
            match path.extension().and_then(|ending| ending.to_str()) {
                Some("whl") => (python.command(session), &["-m", "zipfile", "-e"]),
                Some("deb") => (session.command("dpkg-deb"), &["-x"]),
                _ => continue,
            };
        unpack.args(arguments);
        process::run(unpack.arg(&path).arg(&whole))?;
    }
    fs::rename(&whole, folder).with_context(|| folder.display().to_string())
}
