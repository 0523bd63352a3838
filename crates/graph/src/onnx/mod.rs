//! ONNX files: protobuf messages, and their conversion from and to [`Graph`](crate::Graph).

mod decode;
mod encode;
mod error;
pub mod external;
pub mod files;
mod limit;
mod messages;
mod references;

pub use error::DecodeError;
pub use references::find_reference;
