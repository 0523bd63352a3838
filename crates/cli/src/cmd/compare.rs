//! `narthex compare`.

use narthex_gateway::{Gateway, compare::CompareOptions};

use crate::{args::CompareArgs, bars::Bars, input_file, interrupt, output, render};

/// Compares two packages.
pub(crate) fn run(gateway: &Gateway, args: &CompareArgs) -> anyhow::Result<()> {
    let text = args.text.as_deref().map(input_file::text).transpose()?;
    let options = CompareOptions { text, skip_speed: args.skip_speed };
    let bars = Bars::new();
    let comparison =
        gateway.compare_packages(&args.reference, &args.model, &options, &bars, interrupt::cancel())?;
    if args.json { output::json(&comparison) } else { output::report(render::packages(&comparison)) }
}
