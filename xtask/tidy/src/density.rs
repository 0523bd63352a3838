//! Density of function bodies: closures bound by `let`, tuples that are built to be taken apart, and long functions
//! without a blank line. Each is counted in the product code of one crate, and limited in proportion to its size.

use xtask_workspace::workspace::Package;

use crate::{
    finding::{Finding, Rule},
    source::{Role, Source},
};

/// Lines of code for each closure bound by `let`.
const LINES_PER_CLOSURE: usize = 400;
/// Lines of code for each `let` that takes a new tuple apart.
const LINES_PER_TUPLE: usize = 600;
/// Lines of code for each packed function.
const LINES_PER_PACKED: usize = 1500;
/// Number of closures, and of tuples, that a crate of any size may have.
const ALWAYS_ALLOWED: usize = 2;

/// Crates whose code is not part of the product.
const NOT_PRODUCT: [&str; 1] = ["crates/testkit"];

/// One kind of density in a crate.
struct Count<'a> {
    rule: Rule,
    /// Name of one occurrence.
    noun: &'static str,
    /// Lines of code for each occurrence.
    spacing: usize,
    /// Number of occurrences that a crate of any size may have.
    allowed: usize,
    places: Vec<(&'a str, usize)>,
}

/// Product code of a crate, or of all.
struct Totals<'a> {
    code: usize,
    counts: [Count<'a>; 3],
}

impl<'a> Totals<'a> {
    fn of(sources: impl Iterator<Item = &'a Source>) -> Self {
        let mut code = 0;
        let mut closures = Vec::new();
        let mut tuples = Vec::new();
        let mut packed = Vec::new();
        for source in sources.filter(|source| is_product(source)) {
            code += source.density.code;
            closures.extend(source.density.closures.iter().map(|&line| (source.path.as_str(), line)));
            tuples.extend(source.density.tuples.iter().map(|&line| (source.path.as_str(), line)));
            packed.extend(source.density.packed.iter().map(|&line| (source.path.as_str(), line)));
        }

        let closures = Count {
            rule: Rule::NamedClosures,
            noun: "closure bound by `let`",
            spacing: LINES_PER_CLOSURE,
            allowed: ALWAYS_ALLOWED,
            places: closures,
        };
        let tuples = Count {
            rule: Rule::TupleLets,
            noun: "`let` that takes a new tuple apart",
            spacing: LINES_PER_TUPLE,
            allowed: ALWAYS_ALLOWED,
            places: tuples,
        };
        let packed = Count {
            rule: Rule::PackedFunctions,
            noun: "long function without a blank line",
            spacing: LINES_PER_PACKED,
            allowed: 0,
            places: packed,
        };
        Self { code, counts: [closures, tuples, packed] }
    }
}

impl Count<'_> {
    fn finding(&self, package: &Package, code: usize) -> Option<Finding> {
        let limit = self.allowed.max(code / self.spacing);
        if self.places.len() <= limit {
            return None;
        }
        let places: Vec<String> = self.places.iter().map(|(path, line)| format!("{path}:{line}")).collect();
        let message = format!(
            "has {} times a {}, and {limit} are allowed in {code} lines of code: {}",
            places.len(),
            self.noun,
            places.join(", ")
        );
        Some(Finding::firm(self.rule, &package.folder, message))
    }
}

/// Checks one crate.
pub(crate) fn check(package: &Package, sources: &[Source]) -> Vec<Finding> {
    let folder = format!("{}/", package.folder);
    let totals = Totals::of(sources.iter().filter(|source| source.path.starts_with(&folder)));
    totals.counts.iter().filter_map(|count| count.finding(package, totals.code)).collect()
}

/// Returns the figures of the whole product.
pub(crate) fn note(sources: &[Source]) -> String {
    let totals = Totals::of(sources.iter());
    let figures = totals.counts.iter().map(|count| {
        let lines = totals.code / count.places.len().max(1);
        format!("a {} every {lines} lines (at least {})", count.noun, count.spacing)
    });
    format!("{} lines of code: {}", totals.code, figures.collect::<Vec<_>>().join(", "))
}

fn is_product(source: &Source) -> bool {
    source.role == Role::Product
        && source.path.starts_with("crates/")
        && source.path.contains("/src/")
        && !source.path.contains("fuzzing")
        && !NOT_PRODUCT.iter().any(|folder| source.path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::brief;

    fn check_text(text: &str, expect: &[&str]) {
        let package = Package { name: "narthex-a".into(), folder: "crates/a".into(), dependencies: vec![] };
        let source = Source::parse("crates/a/src/b.rs", text).unwrap();
        assert_eq!(brief(&check(&package, &[source])), expect, "{text}");
    }

    fn function(body: &str) -> String {
        format!("fn f() {{\n{body}}}\n")
    }

    #[test]
    fn closures_bound_by_let_are_counted() {
        let closure = "    let f = |x: u8| x;\n    let g: fn(u8) -> u8 =\n        |x| x;\n    call(|x| x);\n";
        check_text(&function(closure), &[]);
        check_text(&function(&closure.repeat(2)), &["named-closures crates/a"]);
        check_text(&format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(&closure.repeat(2))), &[]);
        let padding = "    step();\n".repeat(1600);
        check_text(&format!("{}{}", function(&closure.repeat(2)), function(&format!("\n{padding}"))), &[]);
    }

    #[test]
    fn tuples_that_are_built_to_be_taken_apart_are_counted() {
        check_text(&function(&"    let (a, b) = (x, y);\n".repeat(3)), &["tuple-lets crates/a"]);
        check_text(&function(&"    let (a, b) = pair();\n".repeat(3)), &[]);
    }

    #[test]
    fn long_functions_need_a_blank_line() {
        check_text(&function(&"    step();\n".repeat(24)), &[]);
        check_text(&function(&"    step();\n".repeat(25)), &["packed-functions crates/a"]);
        check_text(&function(&format!("    step();\n\n{}", "    step();\n".repeat(30))), &[]);
    }

    #[test]
    fn figures_are_noted() {
        let text = function("    let f = |x: u8| x;\n    // Comment.\n\n    f(1);\n");
        let source = Source::parse("crates/a/src/b.rs", &text).unwrap();
        let testkit = Source::parse("crates/testkit/src/b.rs", &text).unwrap();
        let figures = note(&[source, testkit]);
        assert!(
            figures.starts_with("4 lines of code: a closure bound by `let` every 4 lines (at least 400)"),
            "{figures}"
        );
    }
}
