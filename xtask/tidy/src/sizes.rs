//! Limits for the size of files, functions, parameter lists and traits.

use crate::{
    finding::{Finding, Rule},
    source::{Function, Role, Source},
};

/// Maximum number of lines of a file without tests. Longer files need an exception.
const FILE_ADVISED: usize = 500;
/// Maximum number of lines of a file without tests, even with an exception.
const FILE_LIMIT: usize = 700;
/// Advised maximum number of lines of a function's body.
const FUNCTION_ADVISED: usize = 60;
/// Maximum number of lines of a function's body.
const FUNCTION_LIMIT: usize = 80;
/// Maximum number of parameters of a function. The elements of a tuple count one by one.
const PARAMETER_LIMIT: usize = 6;
/// Maximum number of required methods of a trait.
const TRAIT_LIMIT: usize = 5;

/// Checks one source.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings: Vec<Finding> = check_file(source).into_iter().collect();
    for function in source.functions.iter().filter(|function| function.lines > FUNCTION_LIMIT) {
        let message =
            format!("has {} lines and may have {FUNCTION_LIMIT}; split it between its steps", function.lines);
        findings.push(Finding::firm(Rule::FunctionLines, subject(source, &function.name), message));
    }
    for function in &source.functions {
        findings.extend(check_parameters(source, function));
    }
    for port in source.traits.iter().filter(|port| port.required > TRAIT_LIMIT) {
        let message = format!(
            "requires {} methods of its implementations and may require {TRAIT_LIMIT}; split it by caller",
            port.required
        );
        findings.push(Finding::excusable(Rule::TraitMethods, subject(source, &port.name), message));
    }
    findings
}

fn check_parameters(source: &Source, function: &Function) -> Option<Finding> {
    let message = if let Some(tuple) = function.tuples.first() {
        format!("takes the tuple {tuple} apart; make it separate parameters or a named struct")
    } else if function.parameters > PARAMETER_LIMIT {
        format!(
            "has {} parameters, elements of tuples counted, and may have {PARAMETER_LIMIT}; put those that belong \
             together into a named struct",
            function.parameters
        )
    } else {
        return None;
    };
    Some(Finding::excusable(Rule::Parameters, subject(source, &function.name), message))
}

fn check_file(source: &Source) -> Option<Finding> {
    let found = source.lines;
    if found > FILE_LIMIT {
        let message = format!("has {found} lines outside its tests and may have {FILE_LIMIT}; split it");
        return Some(Finding::firm(Rule::FileLines, &source.path, message));
    }
    if found > FILE_ADVISED && source.role == Role::Product {
        let message = format!(
            "has {found} lines outside its tests, and {FILE_ADVISED} are advised; split it, or give the reason in {}",
            super::exceptions::FILE
        );
        return Some(Finding::excusable(Rule::FileLines, &source.path, message));
    }
    None
}

/// Describes the functions over the advised length: their number and the longest.
pub(crate) fn long_functions(sources: &[Source]) -> Option<String> {
    let all: Vec<_> =
        sources.iter().flat_map(|source| source.functions.iter().map(move |f| (source, f))).collect();
    let (source, longest) = all.iter().max_by_key(|(_, function)| function.lines)?;
    let long = all.iter().filter(|(_, function)| function.lines > FUNCTION_ADVISED).count();
    let (total, name, lines) = (all.len(), subject(source, &longest.name), longest.lines);
    Some(format!(
        "{long} of {total} functions have over {FUNCTION_ADVISED} lines; the longest, {name}, has {lines}"
    ))
}

fn subject(source: &Source, name: &str) -> String {
    format!("{}::{name}", source.path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Severity, brief};

    fn check_text(path: &str, text: &str, expect: &[&str]) -> Vec<Finding> {
        let findings = check(&Source::parse(path, text).unwrap());
        assert_eq!(brief(&findings), expect);
        findings
    }

    fn file_of(lines: usize) -> String {
        "const A: u8 = 1;\n".repeat(lines)
    }

    #[test]
    fn files_are_advised_then_limited() {
        check_text("crates/a/src/b.rs", &file_of(500), &[]);
        let advised = check_text("crates/a/src/b.rs", &file_of(501), &["file-lines crates/a/src/b.rs"]);
        assert_eq!(advised[0].severity, Severity::Excusable);
        let limited = check_text("crates/a/src/b.rs", &file_of(701), &["file-lines crates/a/src/b.rs"]);
        assert_eq!(limited[0].severity, Severity::Final);
    }

    #[test]
    fn test_files_have_the_limit_alone() {
        check_text("crates/a/tests/b.rs", &file_of(700), &[]);
        check_text("crates/a/tests/b.rs", &file_of(701), &["file-lines crates/a/tests/b.rs"]);
    }

    #[test]
    fn tests_inside_a_file_do_not_count() {
        let text = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", file_of(400), file_of(400));
        check_text("crates/a/src/b.rs", &text, &[]);
    }

    #[test]
    fn functions_are_limited() {
        let of = |lines: usize| format!("fn f() {{\n{}}}\n", "    step();\n".repeat(lines));
        check_text("crates/a/src/b.rs", &of(80), &[]);
        check_text("crates/a/src/b.rs", &of(81), &["function-lines crates/a/src/b.rs::f"]);
    }

    #[test]
    fn parameters_are_few_and_no_tuples() {
        let path = "crates/a/src/b.rs";
        check_text(path, "fn f(a: A, b: B, c: C, d: D, e: (E, F)) {}", &[]);
        check_text(
            path,
            "fn f(a: A, b: B, c: C, d: D, e: (E, F, G)) {}",
            &["parameters crates/a/src/b.rs::f"],
        );
        check_text(path, "fn f((a, b): (A, B)) {}", &["parameters crates/a/src/b.rs::f"]);
        check_text(path, "impl From<(A, B)> for C { fn from((a, b): (A, B)) -> Self { C } }", &[]);
        check_text(path, "#[cfg(test)] fn f((a, b): (A, B)) {}", &[]);
    }

    #[test]
    fn traits_ask_for_five_methods_at_most() {
        let of = |required: usize| {
            let methods: String = (0..required).map(|i| format!("fn m{i}(&self);\n")).collect();
            format!("trait T {{\n{methods}fn given(&self) {{}}\n}}\n")
        };
        check_text("crates/a/src/b.rs", &of(5), &[]);
        check_text("crates/a/src/b.rs", &of(6), &["trait-methods crates/a/src/b.rs::T"]);
    }

    #[test]
    fn long_functions_are_counted() {
        let text = format!("fn short() {{\n}}\nfn long() {{\n{}}}\n", "    step();\n".repeat(61));
        let note = long_functions(&[Source::parse("crates/a/src/b.rs", &text).unwrap()]).unwrap();
        assert_eq!(note, "1 of 2 functions have over 60 lines; the longest, crates/a/src/b.rs::long, has 61");
    }
}
