//! Inputs and outputs of one run of a graph, for code that runs graphs through a caller.

/// An input of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Feed {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements.
    pub elements: Elements,
}

/// Elements of an input.
#[derive(Debug, Clone, PartialEq)]
pub enum Elements {
    /// Single precision.
    F32(Vec<f32>),
    /// 32-bit integers.
    I32(Vec<i32>),
    /// 64-bit integers.
    I64(Vec<i64>),
    /// Booleans: 0 for false, 1 for true.
    Bool(Vec<u8>),
}

/// An output of a graph, in single precision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl Elements {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::Bool(values) => values.len(),
        }
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
