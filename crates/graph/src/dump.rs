//! A stable text form of a graph, for readers and for golden files.

use std::fmt::{self, Display, Write};

use crate::graph::{Attribute, Graph, Initializer, InitializerData, Node, Value};

impl Graph {
    /// Returns one line per input, constant, node and output. Offsets of external data are omitted, since they depend
    /// on other tensors.
    pub fn dump(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_dump(&mut text);
        text
    }

    fn write_dump(&self, text: &mut String) -> fmt::Result {
        let opsets: Vec<String> = self
            .opsets
            .iter()
            .map(|(domain, version)| format!("{}:{version}", if domain.is_empty() { "onnx" } else { domain }))
            .collect();
        writeln!(text, "graph {} ({})", self.name, opsets.join(", "))?;
        for input in &self.inputs {
            writeln!(text, "input  {}", TypedValue(input))?;
        }
        for constant in &self.initializers {
            write_constant(text, constant)?;
        }
        for node in &self.nodes {
            write_node(text, node)?;
        }
        for output in &self.outputs {
            writeln!(text, "output {}", TypedValue(output))?;
        }
        Ok(())
    }
}

struct TypedValue<'a>(&'a Value);

impl Display for TypedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<String> = self.0.shape.iter().map(ToString::to_string).collect();
        write!(f, "{}: {:?}[{}]", self.0.name, self.0.dtype, shape.join(", "))
    }
}

fn write_constant(text: &mut String, constant: &Initializer) -> fmt::Result {
    let place = match &constant.data {
        InitializerData::Inline(bytes) if bytes.len() <= 64 => format!("{:02x?}", bytes.as_ref()),
        InitializerData::Inline(bytes) => format!("{} bytes", bytes.len()),
        InitializerData::External { file, length, .. } => format!("{length} bytes in {file}"),
    };
    writeln!(text, "const  {}: {:?}{:?} = {place}", constant.name, constant.dtype, constant.shape)
}

fn write_node(text: &mut String, node: &Node) -> fmt::Result {
    let attributes: Vec<String> = node
        .attributes
        .iter()
        .map(|(name, value)| match value {
            Attribute::Int(v) => format!("{name}={v}"),
            Attribute::Float(v) => format!("{name}={v:?}"),
            Attribute::String(v) => format!("{name}={v:?}"),
            Attribute::Ints(v) => format!("{name}={v:?}"),
            Attribute::Floats(v) => format!("{name}={v:?}"),
            Attribute::Bytes(v) => format!("{name}={} bytes", v.len()),
            Attribute::Strings(v) => format!("{name}={v:?}"),
            Attribute::Tensor(v) => format!("{name}={:?}{:?}", v.dtype, v.shape),
            Attribute::Graph(v) => format!("{name}=a graph of {} nodes", v.nodes.len()),
        })
        .collect();

    let dot = if node.domain.is_empty() { "" } else { "." };
    writeln!(
        text,
        "node   {} = {}{dot}{}({}) {{{}}}",
        node.outputs.join(", "),
        node.domain,
        node.op,
        node.inputs.join(", "),
        attributes.join(", ")
    )
}
