//! The file of API keys: its reading, and whether what is written for its keys reads alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_catalog::fuzzing::read_keys;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let _ = read_keys(data);
});
