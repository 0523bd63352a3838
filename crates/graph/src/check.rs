//! Rules for well-formed graphs: every name is defined once and before its use, and every constant has the size of its
//! shape.

use std::collections::HashSet;

use crate::{element::Element, graph::Graph};

/// A violation of a rule for well-formed graphs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// A value has two definitions.
    #[error("value {name:?} is defined twice, the second time by {by:?}")]
    DefinedTwice {
        /// The value.
        name: String,
        /// The node, input or constant that defines it again.
        by: String,
    },
    /// Two nodes have the same name.
    #[error("two nodes are named {name:?}")]
    DuplicateNode {
        /// The name.
        name: String,
    },
    /// A node reads a value that no earlier node, input or constant defines.
    #[error("node {node:?} reads {name:?}, which nothing before it defines")]
    Undefined {
        /// The reader.
        node: String,
        /// The value.
        name: String,
    },
    /// No node produces a graph output.
    #[error("no node computes the graph output {name:?}")]
    NoOutput {
        /// The output.
        name: String,
    },
    /// A constant's length does not match its shape.
    #[error("constant {name:?} has {found} bytes, expected {expected} for its shape")]
    WrongLength {
        /// The constant.
        name: String,
        /// Number of bytes for its shape and type.
        expected: u64,
        /// Number of bytes found.
        found: u64,
    },
    /// An operator's domain is not imported.
    #[error("node {node:?} uses the domain {domain:?}, which the model does not import")]
    UnknownDomain {
        /// The node.
        node: String,
        /// Its domain.
        domain: String,
    },
}

impl Graph {
    /// Checks every rule and returns the first violation.
    pub fn check(&self) -> Result<(), GraphError> {
        let mut names = HashSet::new();
        match self.nodes.iter().find(|node| !names.insert(node.name.as_str())) {
            Some(node) => Err(GraphError::DuplicateNode { name: node.name.clone() }),
            None => self.check_values(),
        }
    }

    /// Checks the rules of [`Graph::check`] except that on node names: nodes may share names or have none, as in files
    /// of other tools.
    pub fn check_values(&self) -> Result<(), GraphError> {
        let mut defined = HashSet::new();
        for name in self.inputs.iter().map(|value| &value.name) {
            define(&mut defined, name, "a graph input")?;
        }
        for constant in &self.initializers {
            define(&mut defined, &constant.name, "a constant")?;
            let found = constant.bytes();
            let expected = constant.expected_bytes().unwrap_or(u64::MAX);
            // Strings have no fixed size, and their bytes are not kept.
            if found != expected && constant.dtype != Element::STRING {
                return Err(GraphError::WrongLength { name: constant.name.clone(), expected, found });
            }
        }
        self.check_nodes(&mut defined)?;
        match self.outputs.iter().find(|output| !defined.contains(output.name.as_str())) {
            Some(output) => Err(GraphError::NoOutput { name: output.name.clone() }),
            None => Ok(()),
        }
    }

    fn check_nodes<'a>(&'a self, defined: &mut HashSet<&'a str>) -> Result<(), GraphError> {
        for node in &self.nodes {
            if !self.opsets.iter().any(|(domain, _)| *domain == node.domain) {
                return Err(GraphError::UnknownDomain {
                    node: node.name.clone(),
                    domain: node.domain.clone(),
                });
            }
            if let Some(name) = node.inputs.iter().find(|n| !n.is_empty() && !defined.contains(n.as_str())) {
                return Err(GraphError::Undefined { node: node.name.clone(), name: name.clone() });
            }
            for output in node.outputs.iter().filter(|name| !name.is_empty()) {
                define(defined, output, &node.name)?;
            }
        }
        Ok(())
    }
}

fn define<'a>(defined: &mut HashSet<&'a str>, name: &'a str, by: &str) -> Result<(), GraphError> {
    if defined.insert(name) {
        Ok(())
    } else {
        Err(GraphError::DefinedTwice { name: name.to_owned(), by: by.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::DType;

    use super::*;
    use crate::build::Builder;

    fn graph(edit: fn(&mut Graph)) -> Result<(), GraphError> {
        let mut b = Builder::new("g", &[("", 20)]);
        let x = b.input("x", DType::F32, &["n".into()]);
        let two = b.scalar(2.0);
        let y = b.op("/a", "Mul", &[&x, &two]);
        b.output(&y, DType::F32, &["n".into()]);
        let mut graph = b.finish();
        edit(&mut graph);
        graph.check()
    }

    #[test]
    fn each_rule_is_kept() {
        graph(|_| ()).unwrap();
        let check = |edit, expected: &str| {
            let error = graph(edit).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(|g| g.nodes.push(g.nodes[0].clone()), "two nodes");
        check(|g| g.nodes[0].inputs[0] = "z".into(), "reads \"z\"");
        check(|g| g.outputs[0].name = "z".into(), "no node");
        check(|g| g.initializers[0].shape = vec![2], "expected 8");
        check(|g| g.initializers.push(g.initializers[0].clone()), "twice");
        check(|g| g.nodes[0].domain = "com.microsoft".into(), "import");
    }
}
