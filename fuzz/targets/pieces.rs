//! SentencePiece models: the pieces, the settings, and the normalisation that is compiled into the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_fuzz::exhaust;
use narthex_text::tokenizer::Tokenizer;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::from_sentencepiece(data, &[]) {
        exhaust::tokenizer(&tokenizer);
    }
});
