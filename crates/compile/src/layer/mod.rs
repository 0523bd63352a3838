//! Parts of a transformer as free functions that add nodes; a drawing stands above each that adds several.
//!
//! They read the architecture and never ask which family or device it is.

pub(crate) mod altup;
pub(crate) mod attention;
pub(crate) mod embed;
pub(crate) mod linear;
pub(crate) mod mlp;
pub(crate) mod norm;
pub(crate) mod plain;
pub(crate) mod rope;
pub(crate) mod task;
