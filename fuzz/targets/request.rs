//! Bodies of requests. Each is parsed by every endpoint.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_server::fuzzing::Endpoint;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    for endpoint in Endpoint::all() {
        let _ = endpoint.read(data);
    }
});
