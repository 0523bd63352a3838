//! Arguments of `narthex service`.

use clap::{Args as ClapArgs, Subcommand};

/// `narthex service`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    pub(crate) command: ServiceCommand,
}

/// Subcommands of `narthex service`.
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Install and start the service, or replace its settings
    Install(ServiceInstallArgs),
    /// Show the state of the service
    Status(ServiceScopeArgs),
    /// Stop the service and remove its file
    Uninstall(ServiceScopeArgs),
}

/// `narthex service install`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ServiceInstallArgs {
    /// Print the service's file instead of installing it
    #[arg(long)]
    pub(crate) print: bool,

    #[command(flatten)]
    pub(crate) scope: ServiceScopeArgs,

    /// Arguments of `serve`, after --, as in -- --port 9000
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<String>,
}

/// The users of the service.
#[derive(Debug, Clone, Copy, ClapArgs)]
pub(crate) struct ServiceScopeArgs {
    /// A system service, started at boot; needs systemd and root [default: a user service, started at login]
    #[arg(long)]
    pub(crate) system: bool,
}
