//! `narthex bench`.

use narthex_gateway::{Gateway, bench::BenchOptions, models::ModelKind};

use super::stated_scheme;
use crate::{
    args::BenchArgs,
    bars::Bars,
    interrupt,
    output::{self, NewFile},
    page, render,
};

/// Measures a model on this machine, on one device or on several.
pub(crate) fn run(gateway: &Gateway, args: &BenchArgs) -> anyhow::Result<()> {
    let options = BenchOptions {
        prompt_tokens: args.prompt_tokens,
        generate_tokens: args.generate_tokens,
        rounds: args.rounds,
        engine_only: args.engine_only,
    };
    stated_scheme(&args.model, gateway.config().scheme)?;
    gateway.check_kind(&args.model, &[ModelKind::Chat, ModelKind::Text])?;

    let bars = Bars::new();
    let cancel = interrupt::cancel();
    if args.vision {
        let report = gateway.bench_pictures(&args.model, args.rounds, &bars, cancel)?;
        return if args.json { output::json(&report) } else { output::report(render::pictures(&report)) };
    }
    let Some(places) = &args.devices else {
        let report = gateway.bench(&args.model, options, &bars, cancel)?;
        return if args.json { output::json(&report) } else { output::report(render::bench(&report)) };
    };
    // Created before the measurement, so that an unusable path fails at once.
    let file = args.report.as_deref().map(NewFile::create).transpose()?;
    let comparison = gateway.compare(&args.model, places, options, &bars, cancel)?;
    let written = file.map_or(Ok(()), |file| file.write(page::page(&comparison)));
    if args.json {
        output::json(&comparison)?
    } else {
        output::report(render::comparison(&comparison))?
    }
    written
}
