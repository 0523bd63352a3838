//! Bodies of requests. Each is parsed by every endpoint.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_server::fuzzing::{Endpoint, read_body};

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    for endpoint in Endpoint::ALL {
        let _ = read_body(endpoint, data);
    }
});
