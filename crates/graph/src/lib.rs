//! ONNX graphs as values that are built, checked, printed, written and read. This crate does not depend on language
//! models.
//!
//! Start at [`Graph`]. [`build::Builder`] builds one node by node, and [`onnx`] converts it to bytes and back.

pub mod build;
pub mod check;
pub mod context;
pub mod dump;
pub mod element;
mod extract;
pub mod formula;
pub mod graph;
pub mod half_precision;
pub mod infer;
pub mod kv_cache;
pub mod noise;
pub mod onnx;
mod order;
pub mod patch;
pub mod replacement;
pub mod typed;
pub mod work;

pub use build::Builder;
pub use element::Element;
pub use graph::{Attribute, Graph, Initializer, InitializerData, Node, Value};
pub use prost::bytes::Bytes;
