//! `narthex runtime`: the libraries that run models.

use narthex_gateway::{Gateway, WheelOrigin};

use crate::{args::RuntimeCommand, bars::Bars, interrupt, output, render};

/// Installs, lists or removes runtimes.
pub(crate) fn run(gateway: &Gateway, command: RuntimeCommand) -> anyhow::Result<()> {
    match command {
        RuntimeCommand::Install { kind, from } => {
            let mut known = gateway.runtimes().into_iter();
            let was_installed = known.any(|runtime| runtime.kind == kind && runtime.installed.is_some());
            let origin = from.map_or(WheelOrigin::Index, WheelOrigin::File);
            let info = gateway.install_runtime(&kind, &origin, &Bars::new(), interrupt::cancel())?;
            match (was_installed, origin) {
                (false, _) => output::note(render::runtime_installed(&kind, &info.version, info.needs())),
                (true, WheelOrigin::Index) => {
                    output::note(format!("{kind} {} is already installed", info.version))
                }
                (true, WheelOrigin::File(file)) => output::note(format!(
                    "{kind} {} is already installed; {} was not read",
                    info.version,
                    file.display()
                )),
            }
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
