//! The programs that the stages call.

use anyhow::bail;
use xtask_tools::{process::works, python::Python, session::Session};

/// Checks that every program is installed. The error lists all missing programs.
pub(crate) fn check(session: &Session<'_>) -> anyhow::Result<String> {
    let mut missing = Vec::new();
    for (component, command) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !works(&mut session.cargo(&[command, "--version"])) {
            missing.push(format!(
                "`cargo {command}` does not run; install it: rustup component add {component}"
            ));
        }
    }
    match Python::find(session) {
        Err(error) => missing.push(error.to_string()),
        Ok(python) => {
            if !works(python.command(session).args(["-m", "pip", "--version"])) {
                missing.push("Python has no pip; on Debian: apt-get install python3-pip".to_owned());
            }
            if !works(python.command(session).args(["-c", "import venv, ensurepip"])) {
                missing.push("Python has no venv; on Debian: apt-get install python3-venv".to_owned());
            }
        }
    }
    if !missing.is_empty() {
        bail!("something is missing\n  {}", missing.join("\n  "));
    }
    Ok(format!("the store is {}", session.home.display()))
}
