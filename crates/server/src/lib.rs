//! The HTTP server: the only inbound HTTP, and the JSON of the APIs. `/health` returns the gateway's reports.
//!
//! Handlers parse a request, call the gateway and render the answer. Start at `routes` for the route table. Each
//! protocol has a folder, such as `openai`; reading bodies, starting requests, streaming and errors are shared.

mod accept;
mod access;
mod access_log;
mod access_rules;
mod anthropic;
mod app;
mod blocking;
mod body;
mod budget;
mod connection;
mod conversation;
mod device_headers;
mod error;
mod events;
mod freed_memory;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod health;
mod held_body;
mod hints;
mod ignored;
mod incomplete_bodies;
mod jobs;
mod keys;
mod limits;
mod loading;
mod memory_reports;
mod metrics;
mod npus;
mod ollama;
mod openai;
mod openapi;
mod outline;
mod paths;
mod protocol;
mod reply;
mod routes;
mod serve;
mod sse;
mod text_or_list;
mod timestamp;
mod timings;
mod tls;
#[cfg(unix)]
mod unix_socket;

pub use accept::ServerAddress;
pub use access::{AccessOptions, AllowedHost, AllowedOrigin, Authentication, BadHost, BadOrigin};
pub use access_rules::AccessRules;
pub use app::RequestOptions;
pub use limits::Limits;
pub use serve::{ServeError, ServeOptions, run_until};
pub use tls::TlsFiles;
