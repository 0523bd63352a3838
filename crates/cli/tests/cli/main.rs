//! Tests of the command line as a process. Those with tight bounds on time are programs beside this folder, which
//! run one after another.

#[path = "../support/mod.rs"]
mod support;

mod commands;
mod encoders;
mod exports;
mod first_hour;
mod full_disk;
mod hardening;
mod launch;
mod mcp;
mod plan;
mod real;
mod serve;
mod service;
mod tools;
