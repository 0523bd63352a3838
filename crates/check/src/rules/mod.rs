//! Rules on whole graphs. Each returns findings on one placed graph.

pub(crate) mod decoder_loop;
pub(crate) mod shapes;
pub(crate) mod storage;
pub(crate) mod types;
