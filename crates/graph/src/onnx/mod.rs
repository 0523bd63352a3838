//! ONNX files: protobuf messages, and their translation from and to [`Graph`](crate::Graph).

mod decode;
mod encode;
pub mod external;
mod limit;
mod messages;

pub use decode::DecodeError;
