//! `narthex`: the command line, and the only place that prints, reads a terminal or ends the process.
//!
//! Start at [`args`] for the command line, then `cmd/<name>.rs` for a command.

#![allow(
    rustdoc::bare_urls,
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "the docs of arguments are help texts, which are not Markdown"
)]

mod args;
mod bars;
mod cmd;
mod environment_keys;
mod exit;
mod input_file;
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
