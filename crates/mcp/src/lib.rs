//! Tools between programs over the Model Context Protocol (MCP).
//!
//! [`server`] offers chat, embeddings, reranking, checks and plans to agents over standard input and output. It reads and
//! writes messages alone; logs are the caller's.

pub mod server;
