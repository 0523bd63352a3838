//! Files of the prefix cache, without the digest that protects them: a block that is read is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_gateway::fuzzing::read_prefix_block;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    let _ = read_prefix_block(data);
});
