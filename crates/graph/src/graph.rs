//! Value types: graph, node, tensor.

use std::collections::HashMap;

use narthex_spec::dtype::Dim;
use prost::bytes::Bytes;

use crate::element::Element;

/// Domain of ONNX Runtime's contributed operators.
pub const MICROSOFT: &str = "com.microsoft";

/// A model with one graph.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// Name of the graph.
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
    /// Shapes that the file declares for values between nodes.
    pub values: Vec<Value>,
    /// Inputs and outputs without a declared rank. Their shape here is empty.
    pub unranked: Vec<String>,
    /// Descriptions of parts of the file that were not kept. Such a graph cannot be written back completely.
    pub unread: Vec<String>,
}

/// A graph input, a graph output, or a value between nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Name of the value.
    pub name: String,
    /// Element type.
    pub dtype: Element,
    /// Shape.
    pub shape: Vec<Dim>,
}

/// A constant tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Initializer {
    /// Name of the constant.
    pub name: String,
    /// Element type.
    pub dtype: Element,
    /// Shape.
    pub shape: Vec<usize>,
    /// Elements of the constant.
    pub data: InitializerData,
}

/// Elements of a constant.
#[derive(Debug, Clone, PartialEq)]
pub enum InitializerData {
    /// Stored in the model, little-endian; a view of the file's bytes if it was read from a file.
    Inline(Bytes),
    /// Stored in a file next to the model.
    External {
        /// File name relative to the model.
        file: String,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

/// An operator with its inputs and outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Path, such as `/layers.3/attn/q_proj/MatMulNBits`.
    pub name: String,
    /// Operator type.
    pub op: String,
    /// Domain; empty for ONNX itself.
    pub domain: String,
    /// Input names; an empty name is an absent optional input.
    pub inputs: Vec<String>,
    /// Output names; an empty name is an unused output.
    pub outputs: Vec<String>,
    /// Attributes, in order.
    pub attributes: Vec<(String, Attribute)>,
}

/// Value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// An integer.
    Int(i64),
    /// A single-precision number.
    Float(f32),
    /// A string.
    String(String),
    /// Integers.
    Ints(Vec<i64>),
    /// Single-precision numbers.
    Floats(Vec<f32>),
    /// A string that is not UTF-8.
    Bytes(Bytes),
    /// Strings.
    Strings(Vec<String>),
    /// A constant tensor.
    Tensor(Box<Initializer>),
    /// A body that the node runs, such as a branch of `If`. It may read values of the outer graph.
    Graph(Box<Graph>),
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
    /// Returns the number of bytes that its shape and type require.
    pub fn expected_bytes(&self) -> Option<u64> {
        let count = self.shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent as u64))?;
        self.dtype.bytes(count)
    }

    /// Returns the number of bytes of its elements, inline or external.
    pub fn bytes(&self) -> u64 {
        match &self.data {
            InitializerData::Inline(bytes) => bytes.len() as u64,
            InitializerData::External { length, .. } => *length,
        }
    }
}

impl Graph {
    /// Returns the version of ONNX's own operator set.
    pub fn opset(&self) -> Option<i64> {
        self.opsets.iter().find(|(domain, _)| domain.is_empty()).map(|(_, version)| *version)
    }

    /// Returns the number of bytes of the graph's constants, inline and external; constants of bodies are not counted.
    pub fn weight_bytes(&self) -> u64 {
        self.initializers.iter().map(Initializer::bytes).sum()
    }

    /// Calls `each` with every node, including those in the bodies of nodes.
    pub fn for_each_node<'a>(&'a self, each: &mut dyn FnMut(&'a Node)) {
        for node in &self.nodes {
            each(node);
            for (_, attribute) in &node.attributes {
                if let Attribute::Graph(body) = attribute {
                    body.for_each_node(each);
                }
            }
        }
    }

    /// Calls `read` with the name of each value that a node, its bodies or an output of the graph reads. A value occurs
    /// as often as it is read.
    pub fn for_each_read<'a>(&'a self, read: &mut dyn FnMut(&'a str)) {
        self.nodes.iter().for_each(|node| node.for_each_read(read));
        self.outputs.iter().for_each(|output| read(&output.name));
    }

    /// Returns how often nodes, their bodies and the graph's outputs read each value.
    pub fn read_counts(&self) -> HashMap<String, usize> {
        let mut reads = HashMap::new();
        self.for_each_read(&mut |name| *reads.entry(name.to_owned()).or_default() += 1);
        reads
    }
}

impl Node {
    /// Returns an attribute by name.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Returns an integer attribute.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            Attribute::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns an attribute that is a single-precision number.
    pub fn float(&self, name: &str) -> Option<f32> {
        match self.attribute(name)? {
            Attribute::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns an attribute that is a list of integers.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name)? {
            Attribute::Ints(values) => Some(values),
            _ => None,
        }
    }

    /// Returns a string attribute.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            Attribute::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the name of an input, or `None` if the input is absent.
    pub fn input(&self, index: usize) -> Option<&str> {
        self.inputs.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Calls `read` with the name of each value that the node and its bodies read; the name of an absent input is empty.
    pub fn for_each_read<'a>(&'a self, read: &mut dyn FnMut(&'a str)) {
        self.inputs.iter().for_each(|name| read(name));
        for (_, attribute) in &self.attributes {
            if let Attribute::Graph(body) = attribute {
                body.for_each_read(read);
            }
        }
    }

    /// Returns whether the operator is `op` of ONNX itself, not of another domain.
    pub fn is_onnx(&self, op: &str) -> bool {
        self.domain.is_empty() && self.op == op
    }

    /// Returns the operator with its domain: `MatMul`, `com.microsoft.MatMulNBits`.
    pub fn operator(&self) -> String {
        if self.domain.is_empty() { self.op.clone() } else { format!("{}.{}", self.domain, self.op) }
    }

    /// Returns its path. If the file has no path for it, the result is its operator and output: `MatMul of y`.
    pub fn path(&self) -> String {
        match (self.name.as_str(), self.outputs.first()) {
            ("", Some(output)) => format!("{} of {output}", self.op),
            ("", None) => self.op.clone(),
            (name, _) => name.to_owned(),
        }
    }
}
