//! CPU kernels: products, attention and the kernels on rows. The results on every instruction set must be those of the
//! portable kernels.
//!
//! `crates/kernels/src/fuzzing` makes the operands from an input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_kernels::fuzzing::compare_with_portable;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let _ = compare_with_portable(data);
});
