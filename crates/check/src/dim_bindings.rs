//! Extents of symbolic dimensions: given by the user, or assumed from the dimension's name.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use narthex_graph::{Graph, formula};
use narthex_spec::dtype::Dim;

/// Default number of new tokens and of all tokens in a step.
const SEQUENCE: u64 = 64;
const TOTAL: u64 = 512;

/// Extents by symbol.
#[derive(Debug, Clone, Default)]
pub(super) struct DimBindings {
    given: BTreeMap<String, u64>,
    /// Assumed extents, in the order of their use.
    assumed: RefCell<BTreeMap<String, u64>>,
}

impl DimBindings {
    pub(super) fn new(given: &BTreeMap<String, u64>) -> Self {
        Self { given: given.clone(), assumed: RefCell::default() }
    }

    /// Returns the extent of a symbol, given or assumed from its name; `None` for other names.
    pub(super) fn get(&self, symbol: &str) -> Option<u64> {
        if let Some(extent) = self.given.get(symbol) {
            return Some(*extent);
        }
        let extent = usual(symbol)?;
        self.assumed.borrow_mut().insert(symbol.to_owned(), extent);
        Some(extent)
    }

    /// Returns the extents that have been assumed so far.
    pub(super) fn assumed(&self) -> BTreeMap<String, u64> {
        self.assumed.borrow().clone()
    }
}

/// Returns the usual extent of a dimension with this name. The caller splits sums and products; other formulas, such as
/// `Min(128, sequence)`, are not names.
fn usual(symbol: &str) -> Option<u64> {
    if !symbol.chars().all(|c| c.is_alphanumeric() || "_-.:/#".contains(c)) {
        return None;
    }
    let name = symbol.to_ascii_lowercase();
    let says = |word: &str| name.contains(word);
    // The model determines the width of a head.
    if says("dim") || says("head") {
        None
    } else if says("batch") {
        Some(1)
    } else if says("past") {
        Some(TOTAL - SEQUENCE)
    } else if says("total") || says("capacity") || says("max_s") || says("cache") {
        Some(TOTAL)
    } else if says("seq") || says("length") || says("tokens") {
        Some(SEQUENCE)
    } else {
        None
    }
}

/// Returns the symbols in the shapes of a graph's inputs, ordered by name. Sums and products have those of their parts.
pub(super) fn symbols(graph: &Graph) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for dim in graph.inputs.iter().flat_map(|input| &input.shape) {
        if let Dim::Symbol(symbol) = dim {
            found.extend(formula::symbols(symbol).into_iter().map(str::to_owned));
        }
    }
    found
}

/// Returns whether a dimension depends on a symbol.
pub(super) fn names(dim: &Dim, symbol: &str) -> bool {
    match dim {
        Dim::Fixed(_) => false,
        Dim::Symbol(text) => {
            // If all other symbols of a formula are known, it depends on the unknown one.
            let is_other = |name: &str| name != symbol && !name.contains(['+', '*']);
            text == symbol || formula::evaluate(text, &|name| is_other(name).then_some(1)).is_none()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_decide_assumed_extents() {
        let given = BTreeMap::from([("n".to_owned(), 9), ("batch_size".to_owned(), 4)]);
        let check = |symbol: &str, expect: Option<u64>| {
            assert_eq!(
                formula::evaluate(symbol, &|name| DimBindings::new(&given).get(name)),
                expect,
                "{symbol}"
            );
        };
        check("n", Some(9));
        check("batch_size", Some(4));
        check("batch", Some(1));
        check("past_sequence_length", Some(448));
        check("sequence_length", Some(64));
        check("past_sequence_length + sequence_length", Some(512));
        check("past_sequence_length + 1", Some(449));
        check("height", None);
        check("kv_cache_dim", None);
        check("Min(128, sequence)", None);
        check("2*sequence_length", Some(128));
        check("2*height", None);
        check("height + 1", None);
    }

    #[test]
    fn a_sum_depends_on_each_of_its_symbols() {
        let dim = Dim::symbol("past + sequence");
        assert!(names(&dim, "past") && names(&dim, "sequence") && !names(&dim, "batch"));
        assert!(names(&Dim::symbol("batch"), "batch") && !names(&Dim::Fixed(3), "batch"));
        let dim = Dim::symbol("2*sequence");
        assert!(names(&dim, "2*sequence") && names(&dim, "sequence") && !names(&dim, "batch"));
    }
}
