//! The Narthex library: fetches, compiles and loads models, and answers requests. It is synchronous and uses neither
//! HTTP nor a terminal.
//!
//! ```no_run
//! use narthex_gateway::{Config, Gateway, request::ChatRequest};
//!
//! # fn main() -> Result<(), narthex_gateway::Error> {
//! let gateway = Gateway::open(Config::standard())?;
//! // The first answer of a model from the catalogue also downloads and compiles it.
//! let answer = gateway.stream("smollm2:135m", ChatRequest::user("What is the capital of France?"))?;
//! println!("{}", answer.text()?);
//! # Ok(())
//! # }
//! ```
//!
//! Start at [`Gateway`]; requests and answers are in [`request`].

mod cancel;
mod child_process;
mod compile;
mod config;
mod encoder_queue;
mod energy;
mod error;
#[cfg(test)]
mod fixtures;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gateway;
mod inspect;
mod intel;
mod library;
mod load;
mod model_settings;
mod report;
mod rights;
mod serve;
mod server_record;
mod threads;
mod turn_queue;
mod upstream_settings;

pub use cancel::{Cancel, CancelCallback};
pub use compile::{
    precompile::{UnsharedWeights, unshared_weights},
    request::{
        Adapter, CalibrationText, Certification, CompileRequest, Rebuild, VocabSubset, WidthPlan,
        calibration_text, vocabulary, width_plan, width_plan_text,
    },
};
pub use config::{Config, PrefixCacheConfig};
pub use energy::{AnswerEnergy, PowerReport};
pub use error::{Error, ErrorKind, TokenCount};
pub use gateway::{Gateway, RequestedPull, ServerRegistration, UpstreamAlternative};
pub use inspect::{bench, check, compare, devices, doctor, plan};
pub use library::{
    DEFAULT_SCHEME,
    export::{ExportFormat, ExportRequest},
    import::ImportRequest,
    package_key::split_scheme,
    runtimes::RuntimeListing,
};
pub use load::{
    residency::{LoadStart, LoadWaiter, PendingLoad, ReadyModel},
    speech_detector::SpeechDetector,
};
pub use model_settings::{AnswerSettings, KeepAlive, LoadSettings, ModelSettings, ResidenceSettings};
pub use narthex_audio::AudioError;
pub use narthex_catalog::{
    keys,
    network::Network,
    outbound, redact,
    source::wheel::WheelOrigin,
    store::{AuditedFile, CheckpointPruning, FileCondition},
};
pub use narthex_device::{
    memory::{limit_freed_memory, release_freed_memory},
    runtime::disable_telemetry,
};
pub use narthex_engine::worker::Drain;
pub use narthex_spec::progress::{Progress, Quiet, Sink as ProgressSink};
pub use report::{
    fallback::{FallbackNode, FallbackNodes},
    load_forecast::{LoadForecast, LoadRoom},
    memory::MemoryReport,
    models,
    placement::{AnsweringDevice, PhaseShares, PlacementLine, PlacementReport, TowerReport},
};
pub use rights::{AutoPull, Rights};
pub use serve::{answer_stream::AnswerStream, generation::Generation, options::unique_number, request};
pub use server_record::{Encryption, RunningServer};
pub use threads::check_threads;
pub use upstream_settings::{
    UpstreamCondition, UpstreamKey, UpstreamRoute, UpstreamRule, UpstreamSettings, UpstreamUrl,
};

/// Returns the path of the settings file in the store at `home`, or else at `NARTHEX_HOME`, or else in the platform's data
/// folder. It may not exist.
pub fn settings_file(home: Option<std::path::PathBuf>) -> Result<std::path::PathBuf, Error> {
    Ok(narthex_catalog::store::Store::settings_file(home)?)
}
