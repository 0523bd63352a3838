//! `narthex serve`.

use narthex_gateway::Gateway;
use narthex_server::{AccessOptions, Authentication, Limits, ServeOptions};

use crate::{args::ServeArgs, bars::Bars, environment_keys, interrupt, output};

/// Serves until a signal.
pub(crate) fn run(gateway: &Gateway, args: ServeArgs) -> anyhow::Result<()> {
    let authentication = if args.insecure_no_auth { Authentication::Off } else { Authentication::Standard };
    let access = AccessOptions {
        allowed_hosts: args.allowed_host,
        cors_origins: args.cors_origin,
        authentication,
        keys: environment_keys::read(&|name| std::env::var(name).ok())?,
        auto_pull: args.auto_pull,
    };
    let options = ServeOptions { host: args.host, port: args.port, access, limits: Limits::standard() };
    options.check(gateway)?;
    for model in &args.model {
        gateway.load(model, &Bars::new(), interrupt::cancel())?;
    }
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
