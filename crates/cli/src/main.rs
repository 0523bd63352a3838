//! `narthex`: the command line, and the only place that prints, reads a terminal or ends the process.
//!
//! Start at [`args`] for the command line, then `cmd/<name>.rs` for a command.

mod args;
mod bars;
mod cmd;
mod environment_keys;
mod exit;
mod interrupt;
mod output;
mod page;
mod render;
mod settings;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // Before any thread starts and before ONNX Runtime reads the environment.
    narthex_gateway::disable_telemetry();
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::usage(&error),
    };
    output::start_log(args.verbose);
    interrupt::install();
    match cmd::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
