//! Tests of the settings of traces. `tests/server/traces.rs` has those with a collector.

use super::*;

#[test]
fn addresses_of_collectors_have_the_path_of_traces_by_default() {
    let check = |text: &str, expect: &str| {
        assert_eq!(text.parse::<TracesEndpoint>().unwrap().to_string(), expect, "{text}");
    };
    check("http://localhost:4318", "http://localhost:4318/v1/traces");
    check("http://localhost:4318/", "http://localhost:4318/v1/traces");
    check("https://box.lan/otlp/traces", "https://box.lan/otlp/traces");
    let reason = "localhost:4318".parse::<TracesEndpoint>().unwrap_err();
    assert_eq!(reason, "expected an address as in http://localhost:4318, found no http:// or https://");
}
