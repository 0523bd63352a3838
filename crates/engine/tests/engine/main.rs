//! Tests of the engine over fake executors.

mod draft_model;
mod latency;
mod prefixes;
mod sequences;
mod simulation;
mod speculation;
mod stored_prefixes;
mod worker;
