//! The tools of the checks and benchmarks: processes, Python environments, a store, a live server, and recorded pages.

pub mod http;
pub mod process;
pub mod pypi;
pub mod python;
pub mod record;
pub mod server;
pub mod session;
pub mod usage;

pub use xtask_workspace::{terminal, workspace};
