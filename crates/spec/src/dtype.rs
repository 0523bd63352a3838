//! Element types and symbolic shapes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Element type of a tensor, with ONNX's name in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// Brain float: the upper half of an `f32`.
    Bf16,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Returns the number of bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::I64 => 8,
        }
    }
}

/// A dimension of a tensor's shape: a number, or the name of a symbol that is bound at run time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim {
    /// A fixed extent.
    Fixed(u64),
    /// A named extent. The same name has the same extent throughout a graph.
    Symbol(String),
}

impl Dim {
    /// Creates a named dimension.
    pub fn symbol(name: &str) -> Self {
        Self::Symbol(name.to_owned())
    }
}

impl From<usize> for Dim {
    fn from(extent: usize) -> Self {
        Self::Fixed(extent as u64)
    }
}

impl From<&str> for Dim {
    fn from(name: &str) -> Self {
        Self::symbol(name)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(extent) => write!(f, "{extent}"),
            Self::Symbol(name) => f.write_str(name),
        }
    }
}
