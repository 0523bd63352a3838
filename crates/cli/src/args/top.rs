//! Arguments of `narthex top`.

use clap::Args as ClapArgs;

/// `narthex top`.
#[derive(Debug, ClapArgs)]
pub(crate) struct TopArgs {
    /// Print the state once and end
    #[arg(long)]
    pub(crate) once: bool,

    /// Print JSON, one object for each refresh
    #[arg(long)]
    pub(crate) json: bool,

    /// Seconds between two refreshes
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) interval: u64,
}
