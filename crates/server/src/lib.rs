//! The HTTP server: the only inbound HTTP, and the JSON of the APIs. `/health` returns the gateway's reports.
//!
//! Handlers parse a request, call the gateway and render the answer. Start at `routes` for the route table. Each
//! protocol has a folder, such as `openai`. What they share is in `protocol`: reading bodies, starting requests,
//! streaming and errors. Connections, the bytes of bodies, and the memory of both are in `http`.

mod access;
mod access_rules;
mod anthropic;
mod app;
mod current_gateway;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod http;
mod jobs;
mod keys;
mod live_sessions;
mod ollama;
mod openai;
mod page;
mod protocol;
mod reports;
mod routes;
mod serve;
mod settings_editor;
mod traces;
mod upstream;
mod waits;

pub use access::{AccessOptions, AllowedHost, AllowedOrigin, Authentication, BadHost, BadOrigin};
pub use access_rules::AccessRules;
pub use app::RequestOptions;
pub use current_gateway::CurrentGateway;
pub use http::{accept::ServerAddress, access_log::ACCESS, limits::Limits, tls::TlsFiles};
pub use serve::{ServeError, ServeOptions, run_until};
pub use settings_editor::{AppliedSettings, SettingsChange, SettingsEditor};
pub use traces::TracesEndpoint;
