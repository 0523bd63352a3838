//! Tests of the patterns. `tests/goldens.rs` has the readings of sentences.

use super::*;

#[test]
fn patterns_are_regular_expressions() {
    web::check_patterns();
    calendar::check_patterns();
    names::check_patterns();
    quantities::check_patterns();
}
