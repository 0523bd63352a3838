//! Settings and records, each with the parser that the first byte selects. Records are written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_fuzz::{scratch, settings};

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let _ = settings::read(data, scratch::folder());
});
