//! `narthex serve`.

use narthex_gateway::Gateway;
use narthex_server::ServeOptions;

use crate::{args::ServeArgs, bars::Bars, interrupt, output};

/// Serves until a signal.
pub(crate) fn run(gateway: &Gateway, args: ServeArgs) -> anyhow::Result<()> {
    for model in &args.model {
        gateway.load(model, &Bars::new(), interrupt::cancel())?;
    }
    let options = ServeOptions { host: args.host, port: args.port, cors_origin: args.cors_origin };
    let mut announced = None;
    let served = narthex_server::run_blocking(gateway.clone(), options, |address| {
        output::note(format!("listening on http://{address} (OpenAI API under /v1)"));
        match gateway.register_server(&address.to_string()) {
            Ok(record) => announced = Some(record),
            Err(error) => output::note(format!("warning: `narthex ps` cannot list this server: {error}")),
        }
    });
    drop(announced);
    Ok(served?)
}
