//! Files of pictures: those whose decoder needs little memory are decoded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_image::Decoder;

/// Maximum memory of a decoder in bytes, well below the limit of the heap.
const MEMORY: u64 = 64 << 20;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    if let Ok(decoder) = Decoder::open(data)
        && decoder.memory() <= MEMORY
    {
        let _ = decoder.decode();
    }
});
