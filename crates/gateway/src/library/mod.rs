//! The models of this machine: names, installed packages, the catalogue, imports, exports and runtime libraries.

pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod model_ref;
pub(crate) mod models;
pub(crate) mod names;
pub(crate) mod package;
pub(crate) mod runtimes;
