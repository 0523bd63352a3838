//! Packed weights for the CPU: the first load stores them, later loads use them, and changed ones are packed again.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    time::SystemTime,
};

use narthex_gateway::{Cancel, CompileRequest, Config, Gateway};
use narthex_spec::{KvCacheDtype, Progress, Scheme, progress::Quiet};

use crate::support::{Tiny, ask, greedy, question};

/// Compiles the tiny Llama in `w8`. Returns its name.
fn compile(tiny: &Tiny) -> String {
    let request = CompileRequest::new(Scheme::W8);
    let compiled = tiny.gateway().compile(&tiny.checkpoint(), &request, &Quiet, &Cancel::new());
    compiled.unwrap_or_else(|error| panic!("{error}")).1.name.to_string()
}

/// Opens a new gateway.
fn open(tiny: &Tiny) -> Gateway {
    let (scheme, kv_cache_dtype) = (Some(Scheme::W8), KvCacheDtype::F32);
    Gateway::open(Config { scheme, kv_cache_dtype, ..tiny.config() }).unwrap()
}

/// Loads the model in a new gateway. Returns an answer.
fn answer(tiny: &Tiny, model: &str) -> String {
    let gateway = open(tiny);
    ask(&gateway, model, question("the cat", greedy(16))).text
}

/// Returns the file of packed weights below a folder.
fn packed_file(folder: &Path) -> Option<PathBuf> {
    fs::read_dir(folder).ok()?.find_map(|entry| {
        let path = entry.ok()?.path();
        let is_packed = path.extension().is_some_and(|ending| ending == "packed");
        if path.is_dir() { packed_file(&path) } else { is_packed.then_some(path) }
    })
}

/// Returns the files of packed weights below a folder, with the times of their last changes.
fn packed_files(folder: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(packed_files(&path));
        } else if path.extension().is_some_and(|ending| ending == "packed") {
            let changed = fs::metadata(&path).unwrap().modified().unwrap();
            files.insert(path, changed);
        }
    }
    files
}

/// Returns the bytes of a file and the time of its last change.
fn state(file: &Path) -> (Vec<u8>, SystemTime) {
    (fs::read(file).unwrap(), fs::metadata(file).unwrap().modified().unwrap())
}

#[test]
fn weights_are_packed_once_and_again_after_a_change() {
    let tiny = Tiny::new();
    let model = compile(&tiny);
    assert_eq!(packed_file(&tiny.home()), None);
    let expected = answer(&tiny, &model);
    let file = packed_file(&tiny.home()).unwrap();
    let stored = state(&file);
    assert_eq!(answer(&tiny, &model), expected);
    assert!(state(&file) == stored, "the second load packed the weights again");

    let (bytes, _) = &stored;
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for changed in [&flipped[..], &bytes[..bytes.len() / 2], &[]] {
        fs::write(&file, changed).unwrap();
        assert_eq!(answer(&tiny, &model), expected);
        assert!(state(&file).0 == *bytes, "after a change to {} bytes", changed.len());
    }

    tiny.gateway().remove(&model).unwrap();
    assert_eq!(packed_file(&tiny.home()), None);
}

#[test]
fn weights_of_towers_are_packed_once() {
    let tiny = Tiny::new();
    let model = tiny.gemma3n_chat();
    let load = || drop(open(&tiny).load(&model, &Quiet, &Cancel::new()).unwrap());
    load();
    let files = packed_files(&tiny.home());
    let folders = ["/cpu/packed/", "/cpu-image/packed/", "/cpu-audio/packed/"];
    for folder in folders {
        assert!(files.keys().any(|path| path.to_string_lossy().contains(folder)), "{folder}: {files:?}");
    }
    load();
    assert_eq!(packed_files(&tiny.home()), files, "the second load packed the weights again");
}

#[test]
fn weights_that_another_process_has_stored_meanwhile_are_kept() {
    let tiny = Tiny::new();
    let model = compile(&tiny);
    let first = Mutex::new(None);
    let sink = |event: Progress| {
        let is_storing =
            matches!(&event, Progress::Started { stage, .. } if stage.contains("Packing the weights"));
        if is_storing {
            answer(&tiny, &model);
            *first.lock().unwrap() = packed_file(&tiny.home()).map(|file| state(&file));
        }
    };
    open(&tiny).load(&model, &sink, &Cancel::new()).unwrap();
    let first = first.into_inner().unwrap().expect("the weights were stored during the load");
    assert!(state(&packed_file(&tiny.home()).unwrap()) == first, "the second process replaced them");
}

#[test]
fn a_load_succeeds_where_weights_cannot_be_stored() {
    let tiny = Tiny::new();
    let model = compile(&tiny);
    let expected = answer(&tiny, &model);
    let device = packed_file(&tiny.home()).unwrap().ancestors().nth(2).unwrap().to_owned();
    fs::remove_dir_all(&device).unwrap();
    fs::write(&device, "in the place of the device's folder").unwrap();
    assert_eq!(answer(&tiny, &model), expected);
    assert_eq!(packed_file(&tiny.home()), None);
}
