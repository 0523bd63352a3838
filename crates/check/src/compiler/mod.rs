//! A vendor's compiler: its results in a report, the search for the nodes on which it fails, QNN's error numbers and the
//! messages of Intel's compiler.

pub mod bisect;
pub(crate) mod compiler_result;
pub mod intel_errors;
pub mod qnn_errors;
