//! The passes that a recipe asks for: each looks for a form in a finished graph and gives labelled patches. What a pass
//! computes is what stood there before; how near the answers stay is measured where they can be run.
//!
//! Two are not here: [`Pass::GroupedProjections`] decides how layers are written, and [`Pass::PrecomputedPositions`] holds
//! of whatever is written.

mod conv;
mod heads;

use narthex_graph::{
    Graph, Node,
    patch::{Patch, PatchError},
};
use narthex_spec::Pass;

/// The patches of one pass for a graph, which may be applied together; none where it finds nothing to change.
pub fn patches(graph: &Graph, pass: Pass) -> Vec<Patch> {
    match pass {
        Pass::PrecomputedPositions | Pass::GroupedProjections => Vec::new(),
        Pass::SplitHeads => heads::patches(graph),
        Pass::LinearAsConv => conv::patches(graph),
    }
}

/// Applies a pass; gives the labels of what was done.
///
/// # Errors
/// A patch that does not fit its graph, which is a defect of Narthex.
pub fn apply(graph: &mut Graph, pass: Pass) -> Result<Vec<String>, PatchError> {
    let patches = patches(graph, pass);
    graph.apply(&patches)?;
    Ok(patches.into_iter().map(|patch| patch.label).collect())
}

/// Operators that positions or their angles are computed with.
const COMPUTING: [&str; 4] = ["Sin", "Cos", "Range", "CumSum"];

/// A node that computes positions or their angles.
pub fn computes_positions(graph: &Graph) -> Option<&Node> {
    graph.nodes.iter().find(|node| node.domain.is_empty() && COMPUTING.contains(&node.op.as_str()))
}
