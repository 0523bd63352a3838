//! Answers of models: their reasoning and their tool calls, as a whole and in pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_fuzz::answers;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let _ = answers::read(data);
});
