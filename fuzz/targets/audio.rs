//! Files of sound: the first minute is decoded.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use narthex_audio::Decoder;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    if let Ok(decoder) = Decoder::open(Cursor::new(data)) {
        let _ = decoder.at_most(60).count();
    }
});
