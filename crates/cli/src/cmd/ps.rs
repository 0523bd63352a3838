//! `narthex ps` and `narthex stop`.

use narthex_gateway::{Error, Gateway};

use crate::{
    args::{JsonArgs, ServedModelArgs, StopArgs},
    output, render, running_server,
};

/// Lists the servers that use this store.
pub(crate) fn run(gateway: &Gateway, args: &JsonArgs) -> anyhow::Result<()> {
    let servers = gateway.running_servers();
    if args.json {
        return output::json(&servers);
    }
    if servers.is_empty() {
        output::note(running_server::NO_SERVER);
        return Ok(());
    }
    output::report(render::servers(&servers))
}

/// Loads a model into the memory of a running server.
pub(crate) fn load(gateway: &Gateway, args: &ServedModelArgs) -> anyhow::Result<()> {
    match running_server::load(gateway, &args.model)? {
        Some(address) => output::note(format!("{} is in the memory of {address}", args.model)),
        None => {
            let message =
                "expected a running server, found none; `narthex serve -m MODEL` starts one with the model";
            return Err(Error::invalid("model", message).into());
        }
    }
    Ok(())
}

/// Unloads a model from running servers.
pub(crate) fn stop(gateway: &Gateway, args: &StopArgs) -> anyhow::Result<()> {
    let unloaded = running_server::unload(gateway, args.model.as_deref())?;
    unloaded.iter().for_each(|model| output::note(format!("unloaded {model}")));
    if unloaded.is_empty() {
        output::note("No running server has such a model in memory; see `narthex ps`.");
    }
    Ok(())
}
