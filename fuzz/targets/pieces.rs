//! SentencePiece models: the pieces, the settings, and the normalisation that is compiled into the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_fuzz::exhaust;
use narthex_text::tokenizer::{Tokenizer, package_json, sentencepiece_json};

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let Ok(json) = sentencepiece_json(data, &[]) else { return };
    if let Ok(tokenizer) = Tokenizer::from_json(&json) {
        exhaust::tokenizer(&tokenizer, &package_json(&json).expect("the file of a package"));
    }
});
