//! Streams of upstreams: the bytes for the client do not depend on the parts in which they arrive.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narthex_server::fuzzing::pass_upstream_events;

fuzz_target!(init: narthex_fuzz::prepare(), |data: &[u8]| {
    assert_eq!(pass_upstream_events(data), Ok(()));
});
