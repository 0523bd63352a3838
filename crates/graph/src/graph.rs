//! The value types: graph, node, tensor.

use narthex_spec::{DType, dtype::Dim};

/// The domain of ONNX Runtime's contributed operators.
pub const MICROSOFT: &str = "com.microsoft";

/// A model with one graph.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// The graph's name.
    pub name: String,
    /// Operator-set versions by domain; the empty domain is ONNX itself.
    pub opsets: Vec<(String, i64)>,
    /// Inputs, in order.
    pub inputs: Vec<Value>,
    /// Outputs, in order.
    pub outputs: Vec<Value>,
    /// Constant tensors.
    pub initializers: Vec<Initializer>,
    /// Nodes; each comes after the nodes whose outputs it reads.
    pub nodes: Vec<Node>,
    /// Metadata by key.
    pub metadata: Vec<(String, String)>,
}

/// A graph input or output.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Dim>,
}

/// A constant tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Initializer {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// Its elements.
    pub data: InitializerData,
}

/// Where a constant's elements are.
#[derive(Debug, Clone, PartialEq)]
pub enum InitializerData {
    /// Inside the model, little-endian.
    Inline(Vec<u8>),
    /// In a file beside the model.
    External {
        /// File name relative to the model.
        file: String,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

/// One operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// A path such as `/layers.3/attn/q_proj/MatMulNBits`.
    pub name: String,
    /// Operator type.
    pub op: String,
    /// Domain; empty for ONNX itself.
    pub domain: String,
    /// Input names; an empty name is an absent optional input.
    pub inputs: Vec<String>,
    /// Output names; an empty name is an output nobody wants.
    pub outputs: Vec<String>,
    /// Attributes, in order.
    pub attributes: Vec<(String, Attribute)>,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// An integer.
    Int(i64),
    /// A single-precision number.
    Float(f32),
    /// Text.
    String(String),
    /// Integers.
    Ints(Vec<i64>),
    /// Single-precision numbers.
    Floats(Vec<f32>),
}

impl From<i64> for Attribute {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<usize> for Attribute {
    fn from(value: usize) -> Self {
        Self::Int(value as i64)
    }
}

impl From<f32> for Attribute {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

impl From<&[i64]> for Attribute {
    fn from(values: &[i64]) -> Self {
        Self::Ints(values.to_vec())
    }
}

impl<const N: usize> From<[i64; N]> for Attribute {
    fn from(values: [i64; N]) -> Self {
        Self::Ints(values.to_vec())
    }
}

impl Initializer {
    /// The bytes its shape and type call for.
    pub fn expected_bytes(&self) -> Option<u64> {
        self.shape
            .iter()
            .try_fold(self.dtype.size() as u64, |bytes, &extent| bytes.checked_mul(extent as u64))
    }
}
