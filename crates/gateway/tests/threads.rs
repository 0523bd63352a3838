//! A process that cannot start threads: libraries that end the process without them are not called.

#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use narthex_gateway::{Cancel, CompileRequest, Error, ErrorKind};
use narthex_spec::{Scheme, progress::Quiet};
use narthex_testkit::one_thread;
use support::Tiny;

fn check(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    assert!(error.to_string().contains("threads"), "{error}");
    assert!(error.hint().unwrap().contains("raise the limit on threads"));
}

#[test]
fn a_compile_and_a_load_without_threads_are_errors() {
    one_thread::run("a_compile_and_a_load_without_threads_are_errors", || {
        let tiny = Tiny::new();
        let request = CompileRequest::new(Scheme::W8);
        check(&tiny.gateway().compile(&tiny.checkpoint(), &request, &Quiet, &Cancel::new()).unwrap_err());
        check(&tiny.gateway().load(&tiny.checkpoint(), &Quiet, &Cancel::new()).unwrap_err());
    });
}
