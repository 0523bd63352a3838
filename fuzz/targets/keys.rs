//! The file of API keys: it is read, written and read again, which must give the same keys.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_catalog::fuzzing::read_keys;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let _ = read_keys(data);
});
