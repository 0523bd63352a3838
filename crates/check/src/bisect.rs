//! The last step of the [ladder](super::qnn_errors::LADDER): which nodes of a graph are at fault when a compiler fails on
//! it. Pure: the caller runs the compiler.

use std::collections::BTreeSet;

/// The most nodes that are then taken out one by one.
const MOST_SINGLE: usize = 24;

/// Why the nodes at fault are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stopped<E> {
    /// The compiler takes the whole; it does not fail each time, or not on this part alone.
    Takes,
    /// It was asked as often as was allowed.
    Tries,
    /// Asking failed.
    Failed(E),
}

/// Of the nodes 0 to `count`, which fail together: none of them can go without the rest being taken. Asks `fails` at most
/// `tries` times about sets of nodes; first the shortest run from the start that fails, then the shortest end of that,
/// then which of the run's nodes matter.
///
/// # Errors
/// See [`Stopped`].
pub fn smallest<E>(
    count: usize,
    mut tries: usize,
    fails: &mut dyn FnMut(&BTreeSet<usize>) -> Result<bool, E>,
) -> Result<BTreeSet<usize>, Stopped<E>> {
    let mut ask = |nodes: &BTreeSet<usize>| {
        tries = tries.checked_sub(1).ok_or(Stopped::Tries)?;
        fails(nodes).map_err(Stopped::Failed)
    };
    // A run up to `low` is taken, one up to `high` is not.
    let (mut low, mut high) = (0, count);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if ask(&(0..middle).collect())? { high = middle } else { low = middle }
    }
    let end = high;
    // A run from `low` on is not taken, one from `high` on is.
    let (mut low, mut high) = (0, end);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if ask(&(middle..end).collect())? { low = middle } else { high = middle }
    }
    let mut found: BTreeSet<usize> = (low..end).collect();
    if !ask(&found)? {
        return Err(Stopped::Takes);
    }
    if found.len() <= MOST_SINGLE {
        for node in found.clone() {
            let without: BTreeSet<usize> = found.iter().copied().filter(|other| *other != node).collect();
            if !without.is_empty() && ask(&without)? {
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
        assert_eq!(stop(3, Ok(true)), Err(Stopped::Tries));
        assert_eq!(stop(100, Ok(false)), Err(Stopped::Takes));
        assert_eq!(stop(100, Err(7)), Err(Stopped::Failed(7)));
    }
}
