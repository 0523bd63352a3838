//! Tests of the server over HTTP. Those that need a process of their own are programs beside this folder.

#[path = "../support/mod.rs"]
mod support;

mod access;
mod agents;
mod bodies;
mod encoders;
mod examples;
mod http;
mod life;
mod limits;
mod ollama;
mod openai;
mod openapi;
mod prefix_cache;
mod protocols;
mod transport;
