//! Labelled changes to a graph, each applied completely or not at all.
//!
//! A patch identifies a node by one of its outputs, because positions shift while patches are applied. The labels of
//! applied patches are recorded in the graph's metadata.

use std::collections::{HashMap, HashSet};

use narthex_spec::dtype::Dim;

use crate::{
    formula,
    graph::{Graph, Initializer, Node},
};

/// Metadata key of the list of applied patches.
pub const APPLIED: &str = "narthex.patches";

/// A labelled change.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    /// Label: `write /layers.0/norm as Add and SimplifiedLayerNormalization`.
    pub label: String,
    /// Edits that belong together.
    pub edits: Vec<Edit>,
}

/// An edit of a graph.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// Replaces the node that outputs a value. An empty list of nodes removes it.
    Replace {
        /// The value.
        making: String,
        /// New nodes, in order.
        nodes: Vec<Node>,
    },
    /// Adds a constant.
    AddConstant(Initializer),
    /// Binds a symbol to an extent wherever it occurs.
    Bind {
        /// The symbol.
        symbol: String,
        /// Its extent.
        extent: u64,
    },
    /// Removes an input.
    DropInput {
        /// Its name.
        name: String,
    },
}

/// A failure to apply a patch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// No node produces the value.
    #[error("cannot {label}: no node computes {value:?}")]
    NoSuchNode {
        /// The patch.
        label: String,
        /// The value.
        value: String,
    },
    /// Two patches replace the same node.
    #[error("cannot {label}: another fix has replaced the node that computes {value:?}")]
    Overlap {
        /// The patch.
        label: String,
        /// The value.
        value: String,
    },
}

impl Graph {
    /// Applies patches in order. On an error the graph is unchanged.
    pub fn apply(&mut self, patches: &[Patch]) -> Result<(), PatchError> {
        let mut replacements = self.replacements(patches)?;
        let nodes = std::mem::take(&mut self.nodes);
        for (index, node) in nodes.into_iter().enumerate() {
            match replacements.remove(&index) {
                Some(new) => self.nodes.extend(new),
                None => self.nodes.push(node),
            }
        }
        for edit in patches.iter().flat_map(|patch| &patch.edits) {
            self.edit(edit);
        }
        self.bind(patches);
        if !patches.is_empty() {
            let labels: Vec<&str> = patches.iter().map(|patch| patch.label.as_str()).collect();
            self.metadata.push((APPLIED.to_owned(), labels.join("\n")));
        }
        Ok(())
    }

    /// Returns the new nodes by the position of the node that they replace.
    fn replacements(&self, patches: &[Patch]) -> Result<HashMap<usize, Vec<Node>>, PatchError> {
        let mut producers: HashMap<&str, usize> = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            producers.extend(node.outputs.iter().map(|output| (output.as_str(), index)));
        }
        let mut replacements = HashMap::new();
        for patch in patches {
            for edit in &patch.edits {
                let Edit::Replace { making, nodes } = edit else { continue };
                let at = || (patch.label.clone(), making.clone());
                let Some(&index) = producers.get(making.as_str()) else {
                    let (label, value) = at();
                    return Err(PatchError::NoSuchNode { label, value });
                };
                if replacements.insert(index, nodes.clone()).is_some() {
                    let (label, value) = at();
                    return Err(PatchError::Overlap { label, value });
                }
            }
        }
        Ok(replacements)
    }

    fn edit(&mut self, edit: &Edit) {
        match edit {
            Edit::Replace { .. } | Edit::Bind { .. } => {}
            Edit::AddConstant(constant) => {
                if self.initializers.iter().all(|other| other.name != constant.name) {
                    self.initializers.push(constant.clone());
                }
            }
            Edit::DropInput { name } => self.inputs.retain(|input| input.name != *name),
        }
    }

    /// Sets the extents of bound symbols, and the shapes of other values that follow from them.
    fn bind(&mut self, patches: &[Patch]) {
        let bound: HashMap<&str, u64> = patches
            .iter()
            .flat_map(|patch| &patch.edits)
            .filter_map(|edit| match edit {
                Edit::Bind { symbol, extent } => Some((symbol.as_str(), *extent)),
                _ => None,
            })
            .collect();

        if bound.is_empty() {
            return;
        }

        for value in self.inputs.iter_mut().chain(&mut self.outputs).chain(&mut self.values) {
            for dim in &mut value.shape {
                if let Dim::Symbol(symbol) = dim
                    && let Some(extent) =
                        formula::evaluate(symbol, &|symbol: &str| bound.get(symbol).copied())
                {
                    *dim = Dim::Fixed(extent);
                }
            }
        }

        let known = self.infer(&|_| None);
        for output in &mut self.outputs {
            let Some(shape) = &known.get(&output.name).shape else { continue };
            if let Some(extents) = shape.iter().copied().collect::<Option<Vec<u64>>>() {
                output.shape = extents.into_iter().map(Dim::Fixed).collect();
                self.unranked.retain(|name| *name != output.name);
            }
        }

        // ONNX Runtime infers more than a shape with symbols states, and shapes of removed values are obsolete.
        let made: HashSet<&str> =
            self.nodes.iter().flat_map(|node| &node.outputs).map(String::as_str).collect();
        self.values.retain(|value| {
            made.contains(value.name.as_str()) && value.shape.iter().all(|dim| matches!(dim, Dim::Fixed(_)))
        });
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::DType;

    use super::*;
    use crate::build::Builder;

    fn graph() -> Graph {
        let mut b = Builder::new("g", &[("", 20)]);
        let x = b.input("x", DType::F32, &["batch".into(), "past + n".into()]);
        let y = b.op("/a", "Relu", &[&x]);
        let z = b.op("/b", "Neg", &[&y]);
        b.output(&z, DType::F32, &["batch".into(), "free".into()]);
        b.finish()
    }

    fn patch(edits: Vec<Edit>) -> Patch {
        Patch { label: "mend".into(), edits }
    }

    #[test]
    fn nodes_are_replaced_where_they_stood() {
        let mut graph = graph();
        let mut new = graph.nodes[0].clone();
        "Abs".clone_into(&mut new.op);
        graph
            .apply(&[patch(vec![Edit::Replace { making: "/a/Relu/out".into(), nodes: vec![new] }])])
            .unwrap();
        let ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.as_str()).collect();
        assert_eq!(ops, ["Abs", "Neg"]);
        assert_eq!(graph.metadata, [(APPLIED.to_owned(), "mend".to_owned())]);
        graph.check().unwrap();
    }

    #[test]
    fn a_patch_that_does_not_fit_changes_nothing() {
        let mut changed = graph();
        let replace = |making: &str| Edit::Replace { making: making.into(), nodes: Vec::new() };
        let twice = [patch(vec![replace("/a/Relu/out")]), patch(vec![replace("/a/Relu/out")])];
        assert!(matches!(changed.apply(&twice), Err(PatchError::Overlap { .. })));
        let absent = [patch(vec![replace("/a/Relu/out"), replace("q")])];
        assert!(matches!(changed.apply(&absent), Err(PatchError::NoSuchNode { .. })));
        assert_eq!(changed, graph());
    }

    #[test]
    fn bound_symbols_reach_the_outputs() {
        let mut graph = graph();
        let bind = |symbol: &str, extent| Edit::Bind { symbol: symbol.into(), extent };
        graph.apply(&[patch(vec![bind("batch", 1), bind("past", 5), bind("n", 2)])]).unwrap();
        let fixed = vec![Dim::Fixed(1), Dim::Fixed(7)];
        assert_eq!((&graph.inputs[0].shape, &graph.outputs[0].shape), (&fixed, &fixed));
    }
}
