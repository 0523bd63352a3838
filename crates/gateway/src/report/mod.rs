//! Plain data about models and devices for lists, `/health` and `ps`.

pub mod models;
pub(crate) mod unix_seconds;
