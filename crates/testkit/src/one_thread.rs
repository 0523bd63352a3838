//! Tests in a process that cannot start a thread.

use std::{env, process::Command};

/// Shell commands that limit a process to one thread. The administrator is exempt from the limit, and becomes another
/// user, who can still open every file.
pub const ONE_THREAD: &str = r#"
    if [ "$(id -u)" = 0 ]; then
        exec setpriv --reuid 65534 --inh-caps +dac_override --ambient-caps +dac_override \
            bash -c 'ulimit -u 1; exec "$0" "$@"' "$0" "$@"
    fi
    ulimit -u 1"#;

/// Variable of a process with this limit.
const MARK: &str = "NARTHEX_TEST_WITH_ONE_THREAD";

/// Runs `body` in a process that cannot start a thread. `test` is the full name of the calling test, with which the test
/// program is started again.
///
/// # Panics
/// The program cannot be started, or the test fails in it.
pub fn run(test: &str, body: impl FnOnce()) {
    if env::var_os(MARK).is_some() {
        body();
        return;
    }
    let started = env::current_exe().and_then(|program| {
        Command::new("bash")
            .args(["-c", &format!("{ONE_THREAD}; exec \"$0\" \"$@\"")])
            .arg(program)
            .args(["--exact", test, "--test-threads=1", "--nocapture"])
            .env(MARK, "1")
            .output()
    });
    let output = started.unwrap_or_else(|error| panic!("the test program cannot be started: {error}"));
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
}
