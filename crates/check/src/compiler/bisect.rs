//! Search for the nodes of a graph on which a compiler fails. It is the last of the
//! [diagnostic steps](super::qnn_errors::DIAGNOSTIC_STEPS).
//! This module has no side effects: the caller runs the compiler.

use std::collections::BTreeSet;

/// Nodes on which a compiler fails together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailingNodes {
    /// Indices of the nodes.
    pub nodes: BTreeSet<usize>,
    /// Set if the compiler accepts them if any one of them is removed; otherwise the attempts ended before that was known.
    pub is_minimal: bool,
}

/// Reason why the nodes at fault are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BisectionError<E> {
    /// The compiler accepts all nodes together: its failure is not deterministic, or needs other nodes of the graph.
    NotReproduced,
    /// The maximum number of attempts was reached.
    TooManyAttempts,
    /// The compiler could not be run.
    Failed(E),
}

/// Returns a failing set of the nodes 0 to `count`, as small as the attempts allow.
///
/// `fails` is called at most `tries` times with sets of nodes. The search finds the shortest failing prefix, then its
/// shortest failing suffix, and then removes runs of nodes and single nodes.
///
/// # Errors
/// See [`BisectionError`].
pub fn smallest<E>(
    count: usize,
    mut tries: usize,
    fails: &mut dyn FnMut(&BTreeSet<usize>) -> Result<bool, E>,
) -> Result<FailingNodes, BisectionError<E>> {
    let mut fails_on = |nodes: &BTreeSet<usize>| {
        tries = tries.checked_sub(1).ok_or(BisectionError::TooManyAttempts)?;
        fails(nodes).map_err(BisectionError::Failed)
    };

    // Invariant: the compiler accepts the run up to `low`, and fails on the run up to `high`.
    let mut low = 0;
    let mut high = count;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fails_on(&(0..middle).collect())? { high = middle } else { low = middle }
    }

    let end = high;
    // Invariant: the compiler fails on `nodes[low..end]` and accepts `nodes[high..end]`.
    let mut low = 0;
    let mut high = end;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fails_on(&(middle..end).collect())? { low = middle } else { high = middle }
    }

    let mut nodes: BTreeSet<usize> = (low..end).collect();
    if !fails_on(&nodes)? {
        return Err(BisectionError::NotReproduced);
    }
    let is_minimal = match shrink(&mut nodes, &mut fails_on) {
        Ok(()) => true,
        Err(BisectionError::TooManyAttempts) => false,
        Err(error) => return Err(error),
    };
    Ok(FailingNodes { nodes, is_minimal })
}

/// Compiles some nodes, and returns whether the compiler fails.
type Trial<'a, E> = dyn FnMut(&BTreeSet<usize>) -> Result<bool, BisectionError<E>> + 'a;

/// Removes runs of nodes that shrink to single nodes, as long as the compiler fails on the rest. At the end, it accepts the
/// nodes if any one of them is removed. After an error, it still fails on `nodes`.
fn shrink<E>(nodes: &mut BTreeSet<usize>, fails_on: &mut Trial<'_, E>) -> Result<(), BisectionError<E>> {
    let mut run = (nodes.len() / 4).max(1);
    loop {
        let before: Vec<usize> = nodes.iter().copied().collect();
        for removed in before.chunks(run) {
            let without: BTreeSet<usize> =
                nodes.iter().copied().filter(|node| !removed.contains(node)).collect();
            if !without.is_empty() && fails_on(&without)? {
                *nodes = without;
            }
        }
        if run == 1 && nodes.len() == before.len() {
            return Ok(());
        }
        run = (run / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_that_fail_together_are_found() {
        let check = |count: usize, fault: &[usize], most: usize| {
            let (fault, mut asked): (BTreeSet<usize>, _) = (fault.iter().copied().collect(), 0);
            let mut fails = |nodes: &BTreeSet<usize>| {
                asked += 1;
                Ok::<_, ()>(fault.is_subset(nodes))
            };
            let found = smallest(count, 100, &mut fails);
            assert_eq!(found, Ok(FailingNodes { nodes: fault.clone(), is_minimal: true }), "{count}");
            assert!(asked <= most, "asked {asked} times for {fault:?} of {count}");
        };
        check(1, &[0], 4);
        check(2, &[1], 5);
        check(1500, &[700], 25);
        check(1500, &[1499], 25);
        check(1500, &[700, 703, 705], 40);
        check(40, &[3, 9], 25);
        check(400, &[10, 390], 64);
    }

    #[test]
    fn nodes_that_were_not_all_removed_are_not_called_the_smallest() {
        let fault: BTreeSet<usize> = (100..400).step_by(3).collect();
        let found = smallest(1500, 64, &mut |nodes| Ok::<_, ()>(fault.is_subset(nodes))).unwrap();
        assert!(!found.is_minimal && fault.is_subset(&found.nodes), "{found:?}");
        assert!(found.nodes.len() < 400, "{}", found.nodes.len());
    }

    #[test]
    fn asking_has_an_end() {
        let stop = |tries, answer: Result<bool, u8>| smallest(100, tries, &mut |_| answer);
        assert_eq!(stop(3, Ok(true)), Err(BisectionError::TooManyAttempts));
        assert_eq!(stop(100, Ok(false)), Err(BisectionError::NotReproduced));
        assert_eq!(stop(100, Err(7)), Err(BisectionError::Failed(7)));
    }
}
