//! A vendor's compiler: its results in a report, the search for the nodes on which it fails, and QNN's error numbers.

pub mod bisect;
pub(crate) mod compiler_result;
pub mod qnn_errors;
