//! Opens pages in the user's browser.

use std::process::{Command, Stdio};

use crate::output;

/// Opens a URL in the browser, with the program of the system for this. Prints the URL if that program is missing.
pub(crate) fn open(url: &str) {
    let program = if cfg!(windows) {
        "explorer"
    } else if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let mut command = Command::new(program);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        // The program ends on its own; a thread waits for it, so that its process does not remain.
        Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
        Err(error) => output::note(format!("warning: `{program}` cannot be started ({error}); open {url}")),
    }
}
