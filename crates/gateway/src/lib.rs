//! The Narthex library: models in, answers out. No HTTP, no terminal, no async.
//!
//! Start at [`Gateway`]; requests and answers are in [`request`].

mod cancel;
mod compile;
mod config;
mod encoder_queue;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gateway;
mod inspect;
mod length;
mod library;
mod load;
mod report;
mod serve;
mod server_record;

pub use cancel::Cancel;
pub use compile::{
    precompile::{Unshared, unshared},
    request::{CompileRequest, Rebuild, Vocabulary, vocabulary},
};
pub use config::Config;
pub use error::{Error, ErrorKind};
pub use gateway::{Announced, Gateway};
pub use inspect::{bench, check, devices, doctor, plan};
pub use length::Length;
pub use library::{
    export::{ExportFormat, ExportRequest},
    import::ImportRequest,
    runtimes::RuntimeListing,
};
pub use load::{
    fallback::{Fallen, FallenNode},
    placement::{PlacementLine, PlacementReport, RanOn},
};
pub use narthex_catalog::source::wheel::WheelOrigin;
pub use narthex_device::runtime::disable_telemetry;
pub use narthex_engine::worker::Drain;
pub use report::models;
pub use serve::{generation::Turn, request};
pub use server_record::RunningServer;
