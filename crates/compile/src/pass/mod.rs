//! The passes that a recipe asks for: each looks for a form in a finished graph and gives labelled patches. What a pass
//! computes is what stood there before; how near the answers stay is measured where they can be run.
//!
//! [`Pass::GroupedProjections`] is not here: it decides how layers are written.

mod conv;
mod heads;

use narthex_graph::{
    Graph,
    patch::{Patch, PatchError},
};
use narthex_spec::Pass;

/// The patches of one pass for a graph, which may be applied together; none where it finds nothing to change.
pub fn patches(graph: &Graph, pass: Pass) -> Vec<Patch> {
    match pass {
        Pass::GroupedProjections => Vec::new(),
        Pass::SplitHeads => heads::patches(graph),
        Pass::LinearAsConv => conv::patches(graph),
    }
}

/// Applies passes in order; gives the labels of what was done.
///
/// # Errors
/// A patch that does not fit its graph, which is a defect of Narthex.
pub fn apply<'a>(
    graph: &mut Graph,
    passes: impl IntoIterator<Item = &'a Pass>,
) -> Result<Vec<String>, PatchError> {
    let mut labels = Vec::new();
    for &pass in passes {
        let patches = patches(graph, pass);
        graph.apply(&patches)?;
        labels.extend(patches.into_iter().map(|patch| patch.label));
    }
    Ok(labels)
}
