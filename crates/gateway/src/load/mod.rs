//! Packages to models in memory: device selection, ONNX Runtime sessions, verification and residency.

pub(crate) mod auto;
pub(crate) mod cache_key;
pub(crate) mod contexts;
pub(crate) mod device_selection;
pub(crate) mod fallback;
pub(crate) mod loaded_model;
pub(crate) mod placement;
pub(crate) mod residency;
pub(crate) mod runtime_choice;
pub(crate) mod sessions;
pub(crate) mod supervise;
pub(crate) mod verify;
