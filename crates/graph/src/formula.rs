//! Extents as sums of products of symbols and numbers: `past_length + 1`, `48*units`, `2*(past+sequence)`.

/// Maximum depth of parentheses. Deeper formulas have no extent.
const MAX_DEPTH: usize = 16;

/// Returns the extent of a symbol or of a formula. `bind` returns the extents of symbols, and may have one for a whole formula.
pub fn evaluate(formula: &str, bind: &dyn Fn(&str) -> Option<u64>) -> Option<u64> {
    if let Some(extent) = bind(formula) {
        return Some(extent);
    }
    if formula.contains(['+', '*']) { value(formula.trim(), bind, MAX_DEPTH) } else { None }
}

fn value(formula: &str, bind: &dyn Fn(&str) -> Option<u64>, depth: usize) -> Option<u64> {
    if let Ok(number) = formula.parse() {
        return Some(number);
    }
    if let Some(extent) = bind(formula) {
        return Some(extent);
    }
    let depth = depth.checked_sub(1)?;
    let terms = split(formula, '+');
    if terms.len() > 1 {
        return terms.into_iter().try_fold(0_u64, |sum, term| sum.checked_add(value(term, bind, depth)?));
    }
    let factors = split(formula, '*');
    if factors.len() > 1 {
        return factors
            .into_iter()
            .try_fold(1_u64, |all, factor| all.checked_mul(value(factor, bind, depth)?));
    }
    value(inside(formula)?, bind, depth)
}

/// Returns the symbols of a formula, in order. Functions such as `Min(128, sequence)` are symbols.
pub fn symbols(formula: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = vec![(formula.trim(), MAX_DEPTH)];
    while let Some((formula, depth)) = rest.pop() {
        let mut parts = split(formula, '+');
        if parts.len() == 1 {
            parts = split(formula, '*');
        }
        match (parts.len(), inside(formula), depth.checked_sub(1)) {
            (1, Some(formula), Some(depth)) => rest.push((formula, depth)),
            (2.., _, Some(depth)) => rest.extend(parts.into_iter().rev().map(|part| (part, depth))),
            _ if formula.parse::<u64>().is_ok() => {}
            _ => found.push(formula),
        }
    }
    found
}

/// Splits a formula at the operators outside of parentheses.
pub(crate) fn split(formula: &str, operator: char) -> Vec<&str> {
    let mut depth = 0_usize;
    let parts = formula.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == operator && depth == 0
    });
    parts.map(str::trim).collect()
}

/// Returns the formula inside of parentheses around a whole one. The caller has split it outside of parentheses.
pub(crate) fn inside(formula: &str) -> Option<&str> {
    formula.strip_prefix('(')?.strip_suffix(')').map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_have_the_extents_of_their_symbols() {
        let bind = |symbol: &str| Some(3).filter(|_| symbol == "units");
        for (formula, expect) in [
            ("units", Some(3)),
            ("48*units", Some(144)),
            ("3*units+2", Some(11)),
            ("3 * units + 2", Some(11)),
            ("2*units*units", Some(18)),
            ("2*(units+1)", Some(8)),
            ("(units+1)*(2*units+units)+1", Some(37)),
            ("48*frames", None),
            ("2*(units+frames)", None),
            ("2*(units+1", None),
            ("2*units)", None),
            ("18446744073709551615*units", None),
        ] {
            assert_eq!(evaluate(formula, &bind), expect, "{formula}");
        }
        // A product may have an extent of its own.
        let bind = |symbol: &str| Some(5).filter(|_| symbol == "48*frames");
        assert_eq!([evaluate("48*frames", &bind), evaluate("48*frames+1", &bind)], [Some(5), Some(6)]);
    }

    #[test]
    fn deep_formulas_have_no_extent() {
        let nested = format!("{}n+1{}", "(".repeat(100_000), ")".repeat(100_000));
        assert_eq!(evaluate(&nested, &|symbol| (symbol == "n").then_some(1)), None);
        assert_eq!(symbols(&nested).len(), 1);
    }

    #[test]
    fn formulas_name_their_symbols() {
        let check = |formula: &str, expect: &[&str]| assert_eq!(symbols(formula), expect, "{formula}");
        check("batch", &["batch"]);
        check("past + sequence", &["past", "sequence"]);
        check("2*(past+sequence)*batch + 1", &["past", "sequence", "batch"]);
        check("Min(128, sequence+1)", &["Min(128, sequence+1)"]);
        check("128", &[]);
    }
}
