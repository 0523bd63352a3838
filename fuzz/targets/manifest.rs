//! `manifest.json` of a package: it is read, together with everything that an executor reads before ONNX Runtime reads
//! the graph.
//!
//! The files that a manifest lists are created with zeros, if their names have no folder. Their sizes are limited.
#![no_main]

use std::{fs, path::Path};

use libfuzzer_sys::fuzz_target;
use narthex_fuzz::scratch::{self, Tail};
use narthex_gateway::fuzzing::open_package;
use narthex_spec::{ModelName, manifest::Manifest};

/// Maximum size of a created file in bytes.
const ROOM: u64 = 1 << 22;

/// Maximum number of created files.
const FILES: usize = 8;

fn make_files(data: &[u8]) {
    let Ok(manifest) = serde_json::from_slice::<Manifest>(data) else { return };
    let beside = |name: &str| name.len() < 64 && Path::new(name).file_name() == Some(name.as_ref());
    for (name, entry) in manifest.files.iter().filter(|(name, _)| beside(name)).take(FILES) {
        if !name.contains('\0') {
            scratch::write(name, b"", Tail::UpTo(entry.bytes.min(ROOM)));
        }
    }
}

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    for left in fs::read_dir(scratch::folder()).expect("the folder").flatten() {
        let _ = fs::remove_file(left.path());
    }
    make_files(data);
    scratch::write("manifest.json", data, Tail::Nothing);
    let name: ModelName = "tiny".parse().expect("a name");
    let _ = open_package(scratch::folder(), &name);
});
