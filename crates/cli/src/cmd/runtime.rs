//! `narthex runtime`: the libraries that run models.

use narthex_gateway::{Gateway, WheelOrigin};

use crate::{args::RuntimeCommand, bars::Bars, interrupt, output, render};

/// Installs, lists or removes runtimes.
pub(crate) fn run(gateway: &Gateway, command: RuntimeCommand) -> anyhow::Result<()> {
    match command {
        RuntimeCommand::Install { kind, from } => {
            let origin = from.map_or(WheelOrigin::Index, WheelOrigin::File);
            let mut known = gateway.runtimes().into_iter();
            let was_installed = known.any(|runtime| runtime.kind == kind && runtime.installed.is_some());
            let info = gateway.install_runtime(&kind, &origin, &Bars::new(), interrupt::cancel())?;
            let version = &info.version;
            output::note(match (was_installed, origin) {
                (false, _) => render::runtime_installed(&kind, version, info.needs()),
                (true, WheelOrigin::Index) => format!("{kind} {version} is already installed"),
                (true, WheelOrigin::File(file)) => {
                    format!("{kind} {version} is already installed; {} was not read", file.display())
                }
            });
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
