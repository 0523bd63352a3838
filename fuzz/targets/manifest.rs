//! `manifest.json` of a package: its reading, and what an executor takes from it before ONNX Runtime sees the graph.
//!
//! The files that a manifest lists are made as it says, of zeros, where they are small and lie beside it.
#![no_main]

use std::{fs, path::Path};

use libfuzzer_sys::fuzz_target;
use narthex_fuzz::scratch::{self, Tail};
use narthex_gateway::fuzzing::open_package;
use narthex_spec::{ModelName, manifest::Manifest};

/// The most bytes of a file that is made.
const ROOM: u64 = 1 << 22;

/// The most files that are made.
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
