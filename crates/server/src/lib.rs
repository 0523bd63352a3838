//! The OpenAI HTTP API: the only inbound HTTP and the only OpenAI JSON.
//!
//! Handlers parse, call the gateway, render. Start at [`routes`] for the table, at [`openai`] for the wire types.

mod connection;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod guard;
mod health;
mod metrics;
mod openai;
mod ran_on;
mod reply;
mod routes;
mod serve;
mod sink;

pub use serve::{ServeError, ServeOptions, run_blocking, run_until};
