//! Tests of the engine with fake executors. The test that counts allocations is a separate program in the parent folder.

mod conversations;
mod draft_model;
mod latency;
mod media;
mod prefixes;
mod sequences;
mod simulation;
mod speculation;
mod states;
mod stored_prefixes;
mod worker;
