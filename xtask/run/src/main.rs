//! `cargo xtask`: starts the program that has a command.
//!
//! The house rules and the benchmarks are packages of their own, so that `cargo xtask tidy` does not compile the product.
//! This program has no dependencies for the same reason.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, Write},
    process::{Command, ExitCode},
};

/// Commands in packages of their own. All others are in `xtask`.
const PACKAGES: [(&str, &str); 3] =
    [("tidy", "xtask-tidy"), ("peers", "xtask-peers"), ("perplexity", "xtask-peers")];

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["run", "--quiet", "--package", package(arguments.first()), "--"]).args(&arguments);

    // Build scripts that read the variables of this package would run again.
    for (name, _) in env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(name);
        }
    }

    match cargo.status() {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) => {
            // A closed standard error has no reader.
            let _ = writeln!(io::stderr(), "error: cargo cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the package that has a command.
fn package(command: Option<&OsString>) -> &'static str {
    let name = command.and_then(|command| OsStr::to_str(command));
    PACKAGES.iter().find(|(command, _)| Some(*command) == name).map_or("xtask", |(_, package)| package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_their_packages() {
        let check = |command: &str, expect| assert_eq!(package(Some(&command.into())), expect, "{command}");
        check("tidy", "xtask-tidy");
        check("peers", "xtask-peers");
        check("perplexity", "xtask-peers");
        check("fuzz", "xtask");
        check("--help", "xtask");
        assert_eq!(package(None), "xtask");
    }
}
