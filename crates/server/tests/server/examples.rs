//! Runs of the example programs that `cargo test` builds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Command;

#[test]
fn an_application_that_embeds_the_library_answers() {
    let folder = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples");
    let program = folder.join(format!("axum_app{}", std::env::consts::EXE_SUFFIX));
    assert!(program.exists(), "there is no {}: `cargo test` without --test builds it", program.display());
    let output =
        Command::new(program).arg("once").env("NARTHEX_PYTHON", "/nonexistent/python").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("HTTP/1.1 200 OK"), "{text}");
    // The texts are "a cat" and "a kitten".
    let cosine: f32 = body.trim().parse().unwrap();
    assert!(cosine > 0.6 && cosine < 1.0, "{text}");
}
