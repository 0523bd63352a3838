//! Tools between programs over the Model Context Protocol (MCP).
//!
//! [`server`] offers chat, embeddings, reranking, checks and plans to agents over standard input and output. In the
//! other direction, [`toolbox`] offers the tools of other MCP servers and of commands to a local model, and [`rounds`]
//! executes a model's calls until it answers. This crate does not print or prompt; the caller does.

pub mod rounds;
pub mod server;
pub mod toolbox;
