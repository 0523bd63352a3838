//! `narthex runtime`: the libraries that run models.

use narthex_gateway::{Gateway, WheelOrigin};

use crate::{args::RuntimeCommand, bars::Bars, interrupt, output, render};

/// Installs, lists or removes runtimes.
pub(crate) fn run(gateway: &Gateway, command: RuntimeCommand) -> anyhow::Result<()> {
    match command {
        RuntimeCommand::Install { kind, from } => {
            let origin = from.map_or(WheelOrigin::Pip, WheelOrigin::File);
            let info = gateway.install_runtime(&kind, &origin, &Bars::new(), interrupt::cancel())?;
            output::note(render::runtime_installed(&kind, &info.version, info.needs()));
            output::line(info.library.display())
        }
        RuntimeCommand::List(args) => {
            let runtimes = gateway.runtimes();
            if args.json { output::json(&runtimes) } else { output::report(render::runtimes(&runtimes)) }
        }
        RuntimeCommand::Rm { kind } => {
            gateway.remove_runtime(&kind)?;
            output::note(format!("removed {kind}"));
            Ok(())
        }
    }
}
