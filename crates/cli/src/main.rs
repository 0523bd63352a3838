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
mod json_log;
mod modelfile;
mod output;
mod page;
#[cfg(test)]
mod reference;
mod render;
mod running_server;
mod settings;
mod settings_file;
mod standard_input;
mod wrap;

use std::{env, process::ExitCode};

use clap::Parser;

use crate::{
    output::{DeviceLine, LogFormat},
    settings_file::{CompletedLine, ParseError},
};

fn main() -> ExitCode {
    // Before any thread starts and before ONNX Runtime reads the environment.
    narthex_gateway::disable_telemetry();
    narthex_gateway::limit_freed_memory();
    let line: Vec<_> = env::args_os().collect();
    let outcome = if line.get(1).is_some_and(|first| first == args::TRY_OUT) {
        args::TryOutArgs::try_parse_from(&line[1..]).map_err(ParseError::Usage).map(|args| {
            start(0, DeviceLine::Hidden, LogFormat::Text);
            cmd::try_out(&args)
        })
    } else {
        settings_file::complete(&line).map(|CompletedLine { args, settings }| {
            start(args.verbose, args.device_line(), args.log_format());
            cmd::run(args, settings)
        })
    };
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => exit::report(&error),
        Err(ParseError::Usage(error)) => exit::usage(&error),
        Err(ParseError::Settings(error)) => exit::report(&error),
        Err(ParseError::Contradiction(error)) => {
            output::note(
                "the settings of the command line, the environment and the settings file contradict each other:",
            );
            exit::usage(&error)
        }
    }
}

fn start(verbose: u8, devices: DeviceLine, format: LogFormat) {
    output::start_log(verbose, devices, format);
    interrupt::install();
}
