//! Wheels: the index of the archive, the names of its members, and unpacking.
//!
//! The digest of a wheel is checked before it is opened, so only pinned files reach this code. This target tests a
//! second line of defence.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use narthex_catalog::fuzzing::unpack;
use narthex_fuzz::scratch::{self, Tail};

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let wheel = scratch::write("w.whl", data, Tail::Nothing);
    let into = scratch::folder().join("out");
    let _ = unpack(&wheel, &into);
    let _ = fs::remove_dir_all(&into);
    let left: Vec<_> = fs::read_dir(scratch::folder()).expect("the folder").collect();
    assert_eq!(left.len(), 1, "a member was written outside its folder: {left:?}");
});
