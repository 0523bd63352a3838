//! `narthex bench`.

use narthex_gateway::{Gateway, bench::BenchOptions};

use crate::{args::BenchArgs, bars::Bars, interrupt, output, render};

/// Measures a model on this machine.
pub(crate) fn run(gateway: &Gateway, args: &BenchArgs) -> anyhow::Result<()> {
    let options = BenchOptions {
        prompt_tokens: args.prompt_tokens,
        generate_tokens: args.generate_tokens,
        rounds: args.rounds,
    };
    let report = gateway.bench(&args.model, options, &Bars::new(), interrupt::cancel())?;
    if args.json { output::json(&report) } else { output::line(render::bench(&report)) }
}
