//! Connections to upstreams: other servers with OpenAI's API that the settings name. `openai::upstream` sends them requests.
//!
//! This module is the only one that connects to other machines for the requests of clients; `traces` uses its connections for
//! spans. Start at [`state`], which has the upstreams of a server. `client` sends requests, `event_filter` and `usage` read
//! answers.

mod breaker;
mod client;
pub(crate) mod connect;
pub(crate) mod event_filter;
pub(crate) mod failure;
pub(crate) mod state;
pub(crate) mod usage;

pub(crate) use self::client::{Link, UpstreamAnswer};
