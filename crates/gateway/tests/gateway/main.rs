//! Tests of the gateway over tiny models. Tests that need a process of their own are separate programs in the parent
//! folder.

#[path = "../support/mod.rs"]
mod support;

mod adapters;
mod answers;
mod catalogue_page;
mod certificate;
mod check;
mod comparison;
mod control_tokens;
mod device_selection;
mod draft_model;
mod encoders;
mod examples;
mod figures;
mod kv_cache;
mod model_estimate;
mod models;
mod packed_weights;
mod pictures;
mod prefix_cache;
mod reductions;
mod reranker;
mod sounds;
mod speech;
mod transcribers;
mod transcription;
mod voices;
