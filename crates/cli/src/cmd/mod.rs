//! One file per command; each takes its arguments and a gateway.

mod answer;
mod bench;
mod chat;
mod check;
mod completions;
mod converse;
mod doctor;
mod embed;
mod exports;
mod models;
mod plan;
mod ps;
mod rerank;
mod runtime;
mod serve;

use narthex_gateway::Gateway;

use crate::{
    args::{Args, Command},
    settings::{config, serve_config},
};

/// Runs the command that was typed.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Args { home, command, .. } = args;
    let plain = |home| Gateway::open(config(home, None));
    match command {
        Command::Chat(chat) => chat::run(&Gateway::open(config(home, Some(&chat.load)))?, &chat),
        Command::Embed(embed) => embed::run(&Gateway::open(config(home, Some(&embed.load)))?, &embed),
        Command::Rerank(rerank) => rerank::run(&Gateway::open(config(home, Some(&rerank.load)))?, &rerank),
        Command::Answer(answer) => answer::run(&Gateway::open(config(home, Some(&answer.load)))?, &answer),
        Command::Serve(serve) => serve::run(&Gateway::open(serve_config(home, &serve))?, serve),
        Command::Pull(pull) => models::pull(&plain(home)?, &pull),
        Command::List(list) => models::list(&plain(home)?, &list),
        Command::Show(show) => models::show(&plain(home)?, &show),
        Command::Rm(rm) => models::rm(&plain(home)?, &rm),
        Command::Ps(ps) => ps::run(&plain(home)?, &ps),
        Command::Compile(compile) => models::compile(&plain(home)?, &compile),
        Command::Plan(plan) => plan::run(&plain(home)?, plan),
        Command::Export(export) => exports::export(&plain(home)?, &export),
        Command::Import(import) => exports::import(&plain(home)?, import),
        Command::Check(check) => check::run(&plain(home)?, check),
        Command::Doctor(doctor) => doctor::run(&plain(home)?, &doctor),
        Command::Bench(bench) => bench::run(&Gateway::open(config(home, Some(&bench.load)))?, &bench),
        Command::Runtime(runtime) => runtime::run(&plain(home)?, runtime.command),
        Command::Completions { shell } => completions::run(shell),
    }
}
