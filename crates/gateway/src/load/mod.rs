//! From a package to a model in memory: `LoadRequest` → `OpenModel` → `LoadedModel`.
//!
//! [`device_selection`] opens a package on the first device that accepts it, [`verify`] compares that device with the
//! CPU, and [`residency`] shares the loaded model among requests.

pub(crate) mod auto;
pub(crate) mod cache_key;
pub(crate) mod contexts;
pub(crate) mod cpu_model;
pub(crate) mod device_selection;
pub(crate) mod draft_model;
pub(crate) mod eligibility;
pub(crate) mod fallback;
pub(crate) mod kv_precision;
pub(crate) mod loaded_model;
pub(crate) mod media_towers;
pub(crate) mod open_model;
pub(crate) mod packed_weights;
pub(crate) mod picture_tower;
pub(crate) mod placement;
pub(crate) mod prefix_cache;
pub(crate) mod request;
pub(crate) mod residency;
pub(crate) mod run_record;
pub(crate) mod runtime_choice;
pub(crate) mod sessions;
mod sound_tower;
pub(crate) mod speech_detector;
pub(crate) mod supervise;
pub(crate) mod tokenizer_reader;
mod tower_queue;
pub(crate) mod transcriber;
pub(crate) mod trial_run;
pub(crate) mod verify;
pub(crate) mod voice;
