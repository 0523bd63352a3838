//! The passes of a recipe. Each pass matches a form in a finished graph and returns labelled patches, which compute the
//! same function as the nodes that they replace. Differences between the answers are measured where the graphs can be
//! run.
//!
//! [`Pass::GroupedProjections`] is not here: it changes how layers are lowered.

mod conv;
mod heads;

use narthex_graph::{
    Graph,
    patch::{Patch, PatchError},
};
use narthex_spec::Pass;

/// Returns the patches of a pass for a graph, which may be applied together; empty if it finds nothing to change.
pub fn patches(graph: &Graph, pass: Pass) -> Vec<Patch> {
    match pass {
        Pass::GroupedProjections => Vec::new(),
        Pass::SplitHeads => heads::patches(graph),
        Pass::LinearAsConv => conv::patches(graph),
    }
}

/// Applies a pass and returns the labels of its patches.
///
/// # Errors
/// A patch that does not fit its graph, which is a defect of Narthex.
pub fn apply(graph: &mut Graph, pass: Pass) -> Result<Vec<String>, PatchError> {
    let patches = patches(graph, pass);
    graph.apply(&patches)?;
    Ok(patches.into_iter().map(|patch| patch.label).collect())
}
