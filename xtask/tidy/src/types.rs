//! Type names that occur twice in a crate.

use std::collections::{BTreeMap, BTreeSet};

use xtask_workspace::workspace::Package;

use crate::{
    finding::{Finding, Rule},
    source::{Role, Source},
};

/// Finds names of structs, enums, unions, traits and aliases that several modules of a crate define. Alternatives for
/// different platforms are in one module, so they count once.
pub(crate) fn check(package: &Package, sources: &[Source]) -> Vec<Finding> {
    let root = format!("{}/src/", package.folder);
    let mut modules: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for source in sources.iter().filter(|s| s.role == Role::Product && s.path.starts_with(&root)) {
        for scope in &source.scopes {
            let module = [std::slice::from_ref(&source.path), &scope.inline].concat().join("::");
            for name in &scope.types {
                modules.entry(name).or_default().insert(module.clone());
            }
        }
    }
    let repeated = modules.into_iter().filter(|(_, modules)| modules.len() > 1);
    repeated
        .map(|(name, modules)| {
            let places: Vec<String> = modules.into_iter().collect();
            let message =
                format!("is defined {} times: {}; give each its own name", places.len(), places.join(", "));
            Finding::excusable(Rule::TypeNames, format!("{}::{name}", package.folder), message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::brief;

    #[test]
    fn a_name_stands_for_one_type_of_a_crate() {
        let check_files = |files: &[(&str, &str)], expect: &[&str]| {
            let sources: Vec<Source> =
                files.iter().map(|(path, text)| Source::parse(path, text).unwrap()).collect();
            let package =
                Package { name: "narthex-a".into(), folder: "crates/a".into(), dependencies: vec![] };
            assert_eq!(brief(&check(&package, &sources)), expect);
        };
        let (b, c) = ("crates/a/src/b.rs", "crates/a/src/c.rs");
        check_files(&[(b, "struct X;"), (c, "enum X {}")], &["type-names crates/a::X"]);
        check_files(&[(b, "trait X {}"), (c, "mod d { type X = u8; }")], &["type-names crates/a::X"]);
        check_files(&[(b, "union X { a: u8 }"), (c, "fn f() { struct X; }")], &["type-names crates/a::X"]);
        check_files(&[(b, "#[cfg(unix)] struct X; #[cfg(windows)] struct X;")], &[]);
        check_files(&[(b, "struct X;"), (c, "#[cfg(test)] mod tests { struct X; }")], &[]);
        check_files(&[(b, "struct X;"), ("crates/d/src/c.rs", "struct X;")], &[]);
        check_files(&[(b, "struct X;"), (c, "impl Y { } impl T for Y { type X = u8; }")], &[]);
    }
}
