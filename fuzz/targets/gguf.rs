//! GGUF files: header, metadata, tensor table, configuration and vocabulary, and the tokenizer and the weights in them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_checkpoint as checkpoint;
use narthex_fuzz::{
    exhaust,
    scratch::{self, Tail},
};

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    for tail in [Tail::Nothing, Tail::Zeros] {
        let path = scratch::write("model.gguf", data, tail);
        if let Ok(checkpoint) = checkpoint::open(&path) {
            exhaust::checkpoint(&checkpoint);
        }
    }
});
