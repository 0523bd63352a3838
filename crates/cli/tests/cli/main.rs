//! Tests that run the command line as a process. Tests with tight time limits are separate programs in the parent
//! folder, so that these do not run at the same time.

#[path = "../support/mod.rs"]
mod support;

mod adapters;
mod commands;
mod encoders;
mod exports;
mod first_hour;
mod full_disk;
mod hardening;
mod images;
mod launch;
mod mcp;
mod plan;
mod real;
mod serve;
mod service;
mod tools;
mod transcribe;
