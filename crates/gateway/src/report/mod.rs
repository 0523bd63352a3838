//! Plain data about models and devices, for lists, `/health` and `ps`. Nothing here loads or decides anything.

pub(crate) mod fallback;
pub(crate) mod kv_cache;
pub(crate) mod load_forecast;
pub(crate) mod memory;
pub mod models;
pub(crate) mod placement;
pub(crate) mod proof;
pub(crate) mod unix_seconds;
