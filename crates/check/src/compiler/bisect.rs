//! Search for the nodes of a graph on which a compiler fails. It is the last of the
//! [diagnostic steps](super::qnn_errors::DIAGNOSTIC_STEPS).
//! This module has no side effects: the caller runs the compiler.

use std::collections::BTreeSet;

/// Maximum number of remaining nodes for which nodes are removed one by one.
const MAX_SINGLE_REMOVALS: usize = 24;

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

/// Returns a smallest failing set of the nodes 0 to `count`: the compiler accepts it if any one of its nodes is
/// removed.
///
/// `fails` is called at most `tries` times with sets of nodes. The search finds the shortest failing prefix, then its
/// shortest failing suffix, and then removes single nodes.
///
/// # Errors
/// See [`BisectionError`].
pub fn smallest<E>(
    count: usize,
    mut tries: usize,
    fails: &mut dyn FnMut(&BTreeSet<usize>) -> Result<bool, E>,
) -> Result<BTreeSet<usize>, BisectionError<E>> {
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

    let mut found: BTreeSet<usize> = (low..end).collect();
    if !fails_on(&found)? {
        return Err(BisectionError::NotReproduced);
    }

    if found.len() <= MAX_SINGLE_REMOVALS {
        for node in found.clone() {
            let without: BTreeSet<usize> = found.iter().copied().filter(|other| *other != node).collect();
            if !without.is_empty() && fails_on(&without)? {
                found = without;
            }
        }
    }
    Ok(found)
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
            assert_eq!(smallest(count, 100, &mut fails), Ok(fault.clone()), "{count}");
            assert!(asked <= most, "asked {asked} times for {fault:?} of {count}");
        };
        check(1, &[0], 4);
        check(2, &[1], 5);
        check(1500, &[700], 25);
        check(1500, &[1499], 25);
        check(1500, &[700, 703, 705], 40);
        check(40, &[3, 9], 25);
    }

    #[test]
    fn asking_has_an_end() {
        let stop = |tries, answer: Result<bool, u8>| smallest(100, tries, &mut |_| answer);
        assert_eq!(stop(3, Ok(true)), Err(BisectionError::TooManyAttempts));
        assert_eq!(stop(100, Ok(false)), Err(BisectionError::NotReproduced));
        assert_eq!(stop(100, Err(7)), Err(BisectionError::Failed(7)));
    }
}
