//! Tools between programs over the Model Context Protocol (MCP).
//!
//! [`server`] offers chat, embeddings, reranking, checks and plans to agents over standard input and output. In the other
//! direction, [`toolbox`] has the tools of other MCP servers and of commands for a local model, and [`rounds`] executes a
//! model's calls until it answers. Nothing here prints or asks; that is the caller's.

pub mod rounds;
pub mod server;
pub mod toolbox;
