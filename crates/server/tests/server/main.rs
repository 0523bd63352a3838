//! Tests of the server over HTTP. Tests that need a process of their own are separate programs in the parent folder.

#[path = "../support/mod.rs"]
mod support;

mod access;
mod agents;
mod audio;
mod bodies;
mod catalogue;
mod decisions;
mod encoders;
mod examples;
mod http;
mod life;
mod limits;
mod media;
mod ollama;
mod openai;
mod openapi;
mod prefix_cache;
mod protocols;
mod realtime;
mod settings;
mod traces;
mod transcribers;
mod transport;
mod upstreams;
