//! Checks and other tasks of the workspace, run as `cargo xtask`.
//!
//! This crate is not part of the product. Start at [`Command`] for the list, at [`mod@test`] for the stages and at
//! [`fuzz`] for the fuzz targets. The house rules (`xtask-tidy`) and the benchmarks against other runtimes (`xtask-peers`)
//! are packages of their own; `xtask-run` starts the package of a command.

mod attack;
mod bfcl;
mod clients;
mod docs;
mod fuzz;
mod genai;
mod load;
mod masks;
mod memory;
mod newcomer;
mod npu;
mod package;
mod platforms;
mod sanitize;
mod sdk;
mod swiftshader;
mod test;
mod test_count;
mod tiny_models;
mod vocabularies;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask_tools::{record::RecordArgs, terminal, workspace::Workspace};

use crate::{
    attack::AttackArgs,
    bfcl::BfclArgs,
    fuzz::FuzzArgs,
    load::LoadArgs,
    newcomer::NewcomerArgs,
    package::PackageArgs,
    platforms::PlatformsArgs,
    test::{Selection, Stage, TestArgs},
};

/// Commands of other packages, for the help. `xtask-run` passes them on.
const OTHER_PACKAGES: &str = "\
Commands in packages of their own:
  tidy          Check the house rules: layers, module cycles, sizes, names, prose, documents
  peers         Compare the speed of Narthex with other runtimes, as bench/README.md describes
  perplexity    Compare the perplexity of models in f32 with llama.cpp on the same files";

/// Checks and other tasks of Narthex.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = OTHER_PACKAGES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, PartialEq, Subcommand)]
enum Command {
    /// Set up the store and run every check.
    Test(TestArgs),
    /// Write the generated pages of the book: the command line and the catalogue.
    Docs,
    /// Fuzz the parsers.
    Fuzz(FuzzArgs),
    /// Attack the program: malformed files, hostile requests, kills.
    Attack(AttackArgs),
    /// Check real models under HTP emulation and on WebGPU over SwiftShader, in half an hour, or compile models with Intel's
    /// compiler for NPUs.
    Npu(npu::NpuArgs),
    /// Run the tests of the crates with `unsafe` code under AddressSanitizer.
    Sanitize(RecordArgs),
    /// Compare exports in onnxruntime-genai with Narthex.
    Genai(RecordArgs),
    /// Run agent frameworks, OpenAI's client for Node and an API fuzzer against a server. Installs 2 GB of packages.
    Clients(RecordArgs),
    /// Measure the masks of constrained decoding over 2,000 schemas, in minutes.
    Masks(RecordArgs),
    /// Ask a model the function-calling questions of the BFCL; every call must be valid.
    Bfcl(BfclArgs),
    /// Measure the memory of compiling a generated 7B checkpoint. Needs 14 GB of disk space.
    Memory(RecordArgs),
    /// Make the packages, install each in a fresh place and ask a model through it. Downloads 1 GB.
    Package(PackageArgs),
    /// Run the tests and the first hour on Windows under wine and on Arm under qemu. Builds for an hour.
    Platforms(PlatformsArgs),
    /// Run a server under load: no request may fail, and no resource may leak.
    Load(LoadArgs),
    /// Install a wheel and use the page as a new user does, with pictures. Needs npm and Chromium.
    Newcomer(NewcomerArgs),
    /// Compare tokenizers with other programs on real vocabularies.
    Vocabularies,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::problem(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let workspace = Workspace::read()?;
    match command {
        Command::Test(args) if args.list => {
            Stage::print_list();
            Ok(())
        }
        Command::Test(args) => test::run(&workspace, Selection::from(args.only)),
        Command::Docs => docs::run(&workspace),
        Command::Attack(args) => attack::run(&workspace, &args),
        Command::Fuzz(args) => fuzz::run(&workspace, &args),
        Command::Npu(args) => npu::run(&workspace, &args),
        Command::Sanitize(args) => sanitize::run(&workspace, args),
        Command::Genai(args) => genai::run(&workspace, args),
        Command::Clients(args) => clients::run(&workspace, args),
        Command::Masks(args) => masks::run(&workspace, args),
        Command::Bfcl(args) => bfcl::run(&workspace, &args),
        Command::Memory(args) => memory::run(&workspace, args),
        Command::Package(args) => package::run(&workspace, args),
        Command::Platforms(args) => platforms::run(&workspace, args),
        Command::Load(args) => load::run(&workspace, args),
        Command::Newcomer(args) => newcomer::run(&workspace, &args),
        Command::Vocabularies => vocabularies::run(&workspace),
    }
}

/// Parses the words after `cargo xtask`, for tests of the commands.
#[cfg(test)]
fn parse(line: &str) -> Result<Command, String> {
    let words = std::iter::once("xtask").chain(line.split_whitespace());
    Cli::try_parse_from(words).map(|cli| cli.command).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn check(line: &str, expect: Result<Command, &str>) {
        match (parse(line), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{line}"),
            (Err(found), Err(expect)) => assert!(found.contains(expect), "{line}: {found}"),
            (found, expect) => panic!("{line}: {found:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_are_parsed() {
        check("test", Ok(Command::Test(TestArgs { list: false, only: None })));
        check("test --list", Ok(Command::Test(TestArgs { list: true, only: None })));
        check("test --only clippy", Ok(Command::Test(TestArgs { list: false, only: Some(Stage::Clippy) })));
        check("test --only nonsense", Err("possible values: tools, format"));
        check("test --onyl clippy", Err("unexpected argument '--onyl'"));
        check("docs", Ok(Command::Docs));
        check("vocabularies", Ok(Command::Vocabularies));
        check("genai --record", Ok(Command::Genai(RecordArgs { record: true })));
        check("sanitize --record", Ok(Command::Sanitize(RecordArgs { record: true })));
        check("clients --record", Ok(Command::Clients(RecordArgs { record: true })));
        check("masks --record", Ok(Command::Masks(RecordArgs { record: true })));
        check("memory --record", Ok(Command::Memory(RecordArgs { record: true })));
        check("fuzz --fast", Err("unexpected argument '--fast'"));
        check("nonsense", Err("unrecognized subcommand 'nonsense'"));
    }
}
