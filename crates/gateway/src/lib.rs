//! The Narthex library: models in, answers out. No HTTP, no terminal, no async.
//!
//! Start at [`Gateway`]; what goes in and comes out of a request is in [`request`].

pub mod announce;
mod answer;
mod auto;
pub mod bench;
mod calibration;
mod cancel;
mod care;
mod chat;
pub mod check;
mod compiling;
mod config;
mod contexts;
mod core;
pub mod devices;
pub mod doctor;
mod embed;
mod encoding;
mod error;
mod export;
mod fallen;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gateway;
mod import;
mod job;
mod length;
pub mod listing;
mod loaded;
mod machine;
mod mask;
mod names;
mod package;
mod placement;
mod placing;
pub mod plan;
mod refine;
pub mod request;
mod rerank;
mod residency;
mod runtime;
mod seconds;
mod shelf;
mod start;
mod subject;
mod today;
mod turn;
mod vendor;
mod verify;

pub use cancel::Cancel;
pub use compiling::{CompileRequest, Rebuild, Vocabulary, vocabulary};
pub use config::Config;
pub use error::{Error, ErrorKind};
pub use export::{ExportFormat, ExportRequest};
pub use fallen::{Fallen, FallenNode};
pub use gateway::{Announced, Gateway};
pub use import::ImportRequest;
pub use length::Length;
pub use narthex_catalog::runtimes::RuntimeSource;
pub use narthex_device::runtime::disable_telemetry;
pub use narthex_engine::worker::Drain;
pub use placement::{PlacementLine, PlacementReport, RanOn};
pub use runtime::RuntimeListing;
pub use turn::Turn;
pub use vendor::{Unshared, unshared};
