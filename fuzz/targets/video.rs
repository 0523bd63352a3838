//! Files of videos.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_image::VideoReader;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let _ = VideoReader::default().frames(data, &|| false);
});
