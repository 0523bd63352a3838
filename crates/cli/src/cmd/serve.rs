//! `narthex serve`.

use std::{env, io, sync::Arc};

use narthex_gateway::{Encryption, Error, Gateway, models::ModelKind};
use narthex_server::{
    AccessOptions, Authentication, CurrentGateway, Limits, RequestOptions, ServeError, ServeOptions,
    ServerAddress, SettingsEditor, TlsFiles,
};
use parking_lot::Mutex;

use super::reload::ServerSettings;
use crate::{
    args::{ServeArgs, StoreArgs},
    bars::Bars,
    browser, environment_keys, input_file, interrupt, output, render, running_server,
    settings_file::Settings,
};

/// Serves until a signal. Reads the settings file again at SIGHUP.
pub(crate) fn run(
    gateway: &Gateway,
    store: StoreArgs,
    args: ServeArgs,
    settings: Settings,
) -> anyhow::Result<()> {
    if args.until_stdin_closes {
        interrupt::end_with_standard_input()?;
    }
    let cache = args.prefix_cache_dir.as_deref();
    if let Some(file) = cache.filter(|folder| folder.exists() && !folder.is_dir()) {
        let message = format!("expected a folder, found the file {}", file.display());
        return Err(Error::invalid("prefix_cache_dir", message).into());
    }

    let current = CurrentGateway::from(gateway.clone());
    let preloaded = settings.preloaded.clone();
    let stated_keys = settings.keys.iter().map(|(name, key)| key.api_key(name));
    let stated_keys = stated_keys.collect::<anyhow::Result<Vec<_>>>()?;
    let running = ServerSettings::new(current.clone(), store, env::args_os().collect(), settings);
    let running = Arc::new(Mutex::new(running));
    let edited = running.clone();
    let editor =
        SettingsEditor::new(move |change| edited.lock().change(change).map_err(|error| format!("{error:#}")));
    let mut options = ServeOptions { settings: Some(editor), ..options(&args)? };
    options.access.keys.extend(stated_keys);
    let encryption = if options.tls.is_some() { Encryption::Tls } else { Encryption::None };
    let scheme = if encryption == Encryption::Tls { "https" } else { "http" };

    options.check(gateway)?;
    let rules = options.access_rules(gateway)?;
    rules.warnings().iter().for_each(|warning| output::note(format!("warning: {warning}")));
    for model in args.model.iter().chain(&preloaded) {
        super::load(gateway, model, ModelKind::ALL, &Bars::new())?;
    }

    let mut announced = None;
    let ready = |address: ServerAddress| {
        output::note(render::startup(gateway, &rules));
        output::note(match &address {
            ServerAddress::Tcp(address) => {
                format!("listening on {scheme}://{address} (OpenAI API under /v1)")
            }
            ServerAddress::Unix(_) => format!("listening on {address} (OpenAI API under /v1)"),
        });
        if let (true, Some(host)) = (args.open, running_server::host_and_port(&address.to_string())) {
            browser::open(&format!("{scheme}://{host}/"));
        }
        match gateway.register_server(&address.to_string(), encryption) {
            Ok(record) => announced = Some(record),
            Err(error) => output::note(format!("warning: `narthex ps` cannot list this server: {error}")),
        }
    };

    let mut first_signal = Some(interrupt::leave_to_server());
    let served = narthex_server::run_until(current, options, ready, async || {
        match first_signal.take() {
            Some(signal) => tokio::select! {
                () = signal => {}
                () = interrupt::hang_ups(|| running.lock().reload()) => {}
            },
            // The process ends at the second signal.
            None => std::future::pending().await,
        }
    });
    drop(announced);
    served.map_err(|error| taken_by_own_server(gateway, args.port, error))
}

/// Returns the options of the server.
fn options(args: &ServeArgs) -> anyhow::Result<ServeOptions> {
    let authentication = if args.insecure_no_auth { Authentication::Off } else { Authentication::Standard };
    let access = AccessOptions {
        allowed_hosts: args.allowed_host.clone(),
        cors_origins: args.cors_origin.clone(),
        authentication,
        keys: environment_keys::read(&|name| env::var_os(name))?,
        auto_pull: args.auto_pull,
    };
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            Some(TlsFiles { certificate: input_file::read(certificate)?, key: input_file::read(key)? })
        }
        _ => None,
    };

    Ok(ServeOptions {
        host: args.host.clone(),
        port: args.port,
        unix_socket: args.unix_socket.clone(),
        tls,
        access,
        limits: Limits::standard(),
        requests: RequestOptions { strict_parameters: args.strict_parameters, truncate: args.truncate },
        settings: None,
        traces: args.otlp_traces_endpoint.clone(),
    })
}

/// Adds to the error of a port that is in use whether a server of this store uses it.
fn taken_by_own_server(gateway: &Gateway, port: u16, error: ServeError) -> anyhow::Error {
    let is_taken =
        matches!(&error, ServeError::Bind { source, .. } if source.kind() == io::ErrorKind::AddrInUse);
    let servers = gateway.running_servers();
    let own = servers.iter().find(|server| server.address.ends_with(&format!(":{port}")));
    match own.filter(|_| is_taken) {
        Some(server) => anyhow::Error::from(error).context(format!(
            "a server of this store (process {}) already listens on {}; `narthex ps` shows its models",
            server.pid, server.address
        )),
        None => error.into(),
    }
}
