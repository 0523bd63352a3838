//! `narthex`: the command line, and the only place that prints, reads a terminal or ends the process.
//!
//! Start at [`args`] for the command line, then `cmd/<name>.rs` for a command.

#![allow(
    rustdoc::bare_urls,
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "the docs of arguments are help texts, which are not Markdown"
)]

mod answer_text;
mod args;
mod bars;
mod browser;
mod chat_editor;
mod cmd;
mod environment_keys;
mod exit;
mod hidden_typing;
mod input_file;
mod interrupt;
mod output;
mod page;
#[cfg(test)]
mod reference;
mod render;
mod running_server;
mod settings;
mod standard_input;
mod wrap;

use std::{env, process::ExitCode};

use clap::Parser;

use crate::output::DeviceLine;

fn main() -> ExitCode {
    // Before any thread starts and before ONNX Runtime reads the environment.
    narthex_gateway::disable_telemetry();
    narthex_gateway::limit_freed_memory();
    let outcome = if env::args_os().nth(1).is_some_and(|first| first == args::TRY_OUT) {
        args::TryOutArgs::try_parse_from(env::args_os().skip(1)).map(|args| {
            start(0, DeviceLine::Hidden);
            cmd::try_out(&args)
        })
    } else {
        args::Args::try_parse().map(|args| {
            start(args.verbose, args.device_line());
            cmd::run(args)
        })
    };
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => exit::report(&error),
        Err(error) => exit::usage(&error),
    }
}

fn start(verbose: u8, devices: DeviceLine) {
    output::start_log(verbose, devices);
    interrupt::install();
}
