//! `narthex key`: the API keys of `serve`.

use narthex_gateway::Gateway;

use crate::{args::KeyCommand, interrupt, output, render};

/// Creates, lists or removes keys.
pub(crate) fn run(gateway: &Gateway, command: KeyCommand) -> anyhow::Result<()> {
    match command {
        KeyCommand::Add(add) => {
            let secret = gateway.add_key(&add.name, add.limits(), interrupt::cancel())?;
            output::note(
                "Copy the key now; it is not shown again. Clients send it as Authorization: Bearer KEY.",
            );
            output::line(secret.expose())
        }
        KeyCommand::List(args) => list(gateway, args.json),
        KeyCommand::Rm { name } => {
            gateway.remove_key(&name, interrupt::cancel())?;
            output::note(format!("removed the key {name}"));
            Ok(())
        }
    }
}

fn list(gateway: &Gateway, as_json: bool) -> anyhow::Result<()> {
    let keys = gateway.keys()?;
    if as_json {
        return output::json(&keys);
    }
    if keys.is_empty() {
        output::note("There are no keys; `narthex key add NAME` creates one.");
        return Ok(());
    }
    output::report(render::keys(&keys))
}
