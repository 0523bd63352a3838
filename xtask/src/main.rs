//! The checks and chores of the workspace, run as `cargo xtask`.
//!
//! `tidy` reads the sources and never runs them; `test` runs every check there is; `fuzz` looks for inputs that break a
//! parser; `npu` checks real models under HTP emulation, `vocabularies` tokenizers with real vocabularies, `genai` exports
//! in onnxruntime-genai; `peers` measures Narthex beside other runtimes, `perplexity` what a model in `f32` predicts beside
//! llama.cpp over the same file, `memory` what a compile of a large model holds, and `load` keeps a server busy. Nothing of
//! the product lives here. Start at [`tidy`] for the house rules, at [`test`] for the stages, at [`fuzz`] for the targets and
//! at [`peers`] for the sides.

mod fuzz;
mod genai;
mod load;
mod memory;
mod npu;
mod package;
mod peers;
mod stamp;
mod swiftshader;
mod terminal;
mod test;
mod tidy;
mod vocabularies;
mod workspace;

use std::process::ExitCode;

use anyhow::bail;

use crate::{
    stamp::Keep,
    test::{Choice, Stage},
    workspace::Workspace,
};

const USAGE: &str = "The checks and chores of Narthex.

Usage: cargo xtask <COMMAND>

Commands:
  tidy                 check the house rules: layers, sizes, names, documents
  tidy --pending       show the findings of crates that are not held to a rule yet, too
  test                 set up and run every check
  test --list          name the stages of `test`
  test --only STAGE    run one stage
  fuzz                 fuzz every parser for a minute each
  fuzz --target T,T    fuzz some
  fuzz --seconds N     fuzz for N seconds each
  fuzz --record        keep the table in conformance/runs
  npu                  check real models under HTP emulation, in minutes
  npu --record         keep the findings in conformance/runs
  peers                measure Narthex beside other runtimes, as bench/README.md tells
  peers --only S,S     measure some sides
  peers --rounds N     visit every side N times
  peers --record       keep the figures in bench/runs
  load                 keep a server busy for ten minutes; nothing may fail, or be left behind
  load --minutes N     keep it busy for N minutes
  load --record        keep the figures in bench/runs
  perplexity           hold models in f32 against llama.cpp over the same files
  perplexity --record  keep the figures in bench/runs
  memory               compile a generated 7B checkpoint, and measure what that holds; takes 14 GB of disk
  memory --record      keep the figures in bench/runs
  genai                hold exports in onnxruntime-genai against Narthex
  genai --record       keep the findings in conformance/runs
  vocabularies         check tokenizers against real vocabularies and what others make of them
  help                 print this";

/// What was asked for.
#[derive(Debug, PartialEq)]
enum Command {
    Help,
    Tidy(tidy::Pending),
    ListStages,
    Test(Choice),
    Fuzz(fuzz::Options),
    Npu(Keep),
    Genai(Keep),
    Memory(Keep),
    Load(load::Options),
    Peers(peers::Options),
    Perplexity(Keep),
    Vocabularies,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match parse(&words).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::problem(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[String]) -> anyhow::Result<Command> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Ok(match words.as_slice() {
        [] | ["help" | "-h" | "--help", ..] => Command::Help,
        ["tidy"] => Command::Tidy(tidy::Pending::Count),
        ["tidy", "--pending"] => Command::Tidy(tidy::Pending::Show),
        ["test"] => Command::Test(Choice::All),
        ["test", "--list"] => Command::ListStages,
        ["test", "--only", stage] => Command::Test(Choice::Only(stage.parse()?)),
        ["fuzz", rest @ ..] => Command::Fuzz(fuzz::Options::parse(rest)?),
        ["npu"] => Command::Npu(Keep::Nothing),
        ["npu", "--record"] => Command::Npu(Keep::Record),
        ["genai"] => Command::Genai(Keep::Nothing),
        ["genai", "--record"] => Command::Genai(Keep::Record),
        ["vocabularies"] => Command::Vocabularies,
        ["perplexity"] => Command::Perplexity(Keep::Nothing),
        ["perplexity", "--record"] => Command::Perplexity(Keep::Record),
        ["memory"] => Command::Memory(Keep::Nothing),
        ["memory", "--record"] => Command::Memory(Keep::Record),
        ["load", rest @ ..] => Command::Load(load::Options::parse(rest)?),
        ["peers", rest @ ..] => Command::Peers(peers::Options::parse(rest)?),
        _ => bail!("`{}` is no command\n\n{USAGE}", words.join(" ")),
    })
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Help => terminal::line(USAGE),
        Command::ListStages => {
            for stage in Stage::ALL {
                terminal::line(format!("{:<10} {}", stage.name(), stage.about()));
            }
        }
        Command::Tidy(pending) => tidy::report(&Workspace::read()?, pending)?,
        Command::Test(choice) => test::run(&Workspace::read()?, choice)?,
        Command::Fuzz(options) => fuzz::run(&Workspace::read()?, &options)?,
        Command::Npu(keep) => npu::run(&Workspace::read()?, keep)?,
        Command::Genai(keep) => genai::run(&Workspace::read()?, keep)?,
        Command::Memory(keep) => memory::run(&Workspace::read()?, keep)?,
        Command::Load(options) => load::run(&Workspace::read()?, options)?,
        Command::Peers(options) => peers::run(&Workspace::read()?, &options)?,
        Command::Perplexity(keep) => peers::same::run(&Workspace::read()?, keep)?,
        Command::Vocabularies => vocabularies::run(&Workspace::read()?)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expect: Result<Command, &str>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match (parse(&words), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{line}"),
            (Err(found), Err(expect)) => assert!(found.to_string().contains(expect), "{line}: {found}"),
            (found, expect) => panic!("{line}: {found:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn commands_are_told_apart() {
        check("", Ok(Command::Help));
        check("tidy", Ok(Command::Tidy(tidy::Pending::Count)));
        check("tidy --pending", Ok(Command::Tidy(tidy::Pending::Show)));
        check("test", Ok(Command::Test(Choice::All)));
        check("test --list", Ok(Command::ListStages));
        check("test --only clippy", Ok(Command::Test(Choice::Only(Stage::Clippy))));
        check("test --only nonsense", Err("expected one of tools, format"));
        let onnx: Vec<&str> = vec!["--target", "onnx", "--seconds", "5"];
        check("fuzz --target onnx --seconds 5", Ok(Command::Fuzz(fuzz::Options::parse(&onnx).unwrap())));
        let once = peers::Options::parse(&["--rounds", "1"]).unwrap();
        check("peers --rounds 1", Ok(Command::Peers(once)));
        check("vocabularies", Ok(Command::Vocabularies));
        check("genai --record", Ok(Command::Genai(Keep::Record)));
        check("npu --record", Ok(Command::Npu(Keep::Record)));
        check("perplexity", Ok(Command::Perplexity(Keep::Nothing)));
        check("memory --record", Ok(Command::Memory(Keep::Record)));
        check("fuzz --fast", Err("expected --target T,T, --seconds N or --record"));
        check("test --onyl clippy", Err("`test --onyl clippy` is no command"));
    }
}
