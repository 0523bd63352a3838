//! Cycles between sibling modules.
//!
//! Within a crate, an edge leads from a module to each module that it names by `use` or by a path. A name that an
//! enclosing module imports or re-exports counts as a reference to the module that defines it. At each level of the
//! module tree, a module represents itself and everything below it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
};

use xtask_workspace::workspace::Package;

use crate::{
    finding::{Finding, Rule},
    scopes::{Import, Scope},
    source::{Role, Source},
};

/// Maximum number of imports that are followed from one name.
const MAX_HOPS: usize = 16;

/// A module's path from the root of its crate.
type Path = Vec<String>;

/// One module of a crate.
struct Module<'a> {
    file: &'a str,
    scope: &'a Scope,
}

/// The first reference from one module to another.
struct Reference<'a> {
    file: &'a str,
    name: String,
}

/// The edges between the children of one module.
type Level<'a> = BTreeMap<String, BTreeMap<String, Reference<'a>>>;

/// Finds the cycles of one crate.
pub(crate) fn check(package: &Package, sources: &[Source]) -> Vec<Finding> {
    let tree = Tree::of(package, sources);
    let mut findings = Vec::new();
    for (parent, level) in tree.levels() {
        for (group, cycle) in cycles(&level) {
            let folder = [&[format!("{}/src", package.folder)], parent.as_slice()].concat().join("/");
            let subject = format!("{folder}::{}", group.join("+"));
            findings.push(Finding::excusable(Rule::ModuleCycles, subject, describe(&level, &group, &cycle)));
        }
    }
    findings
}

/// The modules of a crate by path.
struct Tree<'a>(BTreeMap<Path, Module<'a>>);

impl<'a> Tree<'a> {
    fn of(package: &Package, sources: &'a [Source]) -> Self {
        let root = format!("{}/src/", package.folder);
        let mut modules = BTreeMap::new();
        for source in sources.iter().filter(|source| source.role == Role::Product) {
            let Some(file) = source.path.strip_prefix(&root).filter(|file| !file.starts_with("bin/")) else {
                continue;
            };
            let mut path: Path = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
            path.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
            for scope in &source.scopes {
                modules
                    .insert([path.as_slice(), &scope.inline].concat(), Module { file: &source.path, scope });
            }
        }
        Self(modules)
    }

    /// Returns the edges between the children of each module.
    fn levels(&self) -> BTreeMap<Path, Level<'a>> {
        let mut levels: BTreeMap<Path, Level<'a>> = BTreeMap::new();
        for (from, module) in &self.0 {
            let imported = module.scope.imports.iter().map(|import| &import.path);
            for path in imported.chain(&module.scope.paths) {
                let Some(to) = self.target(from, path) else { continue };
                let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if let (Some(a), Some(b)) = (from.get(shared), to.get(shared)) {
                    let level = levels.entry(from[..shared].to_vec()).or_default();
                    level
                        .entry(a.clone())
                        .or_default()
                        .entry(b.clone())
                        .or_insert_with(|| Reference { file: module.file, name: path.join("::") });
                }
            }
        }
        levels
    }

    /// Returns the module of this crate to which a path in module `from` refers.
    fn target(&self, from: &[String], path: &[String]) -> Option<Path> {
        let absolute = self.absolute(from, path)?;
        Some(self.follow(from, absolute, 0))
    }

    /// Returns a path from the crate's root; `None` if it refers to another crate.
    fn absolute(&self, from: &[String], path: &[String]) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let base = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => {
                let ups = path.iter().take_while(|segment| *segment == "super").count();
                let base = from.get(..from.len().checked_sub(ups)?)?;
                return Some([base, &path[ups..]].concat());
            }
            name => {
                let module = self.0.get(from)?;
                if !module.scope.items.contains(name) {
                    let import = import(module.scope, name).filter(|import| import.path != path)?;
                    let base = self.absolute(from, &import.path)?;
                    return Some([base.as_slice(), rest].concat());
                }
                [from, std::slice::from_ref(first)].concat()
            }
        };
        Some([base.as_slice(), rest].concat())
    }

    /// Follows a path down the tree, through the imports of the modules around `from`, to the module that defines it.
    fn follow(&self, from: &[String], path: Path, hops: usize) -> Path {
        let mut depth = 0;
        while depth < path.len() && self.0.contains_key(&path[..=depth]) {
            depth += 1;
        }
        let (at, rest) = path.split_at(depth);
        let (Some(name), Some(module)) = (rest.first(), self.0.get(at)) else { return at.to_vec() };
        if hops == MAX_HOPS || !from.starts_with(at) || module.scope.items.contains(name) {
            return at.to_vec();
        }
        let imported = import(module.scope, name).and_then(|import| self.absolute(at, &import.path));
        match imported.or_else(|| self.behind_glob(at, module.scope, name)) {
            Some(base) => self.follow(from, [base.as_slice(), &rest[1..]].concat(), hops + 1),
            None => at.to_vec(),
        }
    }

    /// Returns the path of a name that a glob import brings into a module.
    fn behind_glob(&self, at: &[String], scope: &Scope, name: &str) -> Option<Path> {
        let globs = scope.imports.iter().filter(|import| import.name.is_none());
        globs.filter_map(|glob| self.absolute(at, &glob.path)).find_map(|base| {
            let module = self.0.get(&base)?;
            module.scope.items.contains(name).then(|| [base.as_slice(), &[name.to_owned()]].concat())
        })
    }
}

fn import<'a>(scope: &'a Scope, name: &str) -> Option<&'a Import> {
    scope.imports.iter().find(|import| import.name.as_deref() == Some(name))
}

/// Returns each set of modules that reach one another, with a shortest cycle in it.
fn cycles(level: &Level<'_>) -> Vec<(Vec<String>, Vec<String>)> {
    let reached: BTreeMap<&str, BTreeMap<&str, &str>> =
        level.keys().map(|name| (name.as_str(), reach(level, name))).collect();
    let leads = |a: &str, b: &str| reached.get(a).is_some_and(|from| from.contains_key(b));
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for &name in reached.keys() {
        if seen.contains(name) || !leads(name, name) {
            continue;
        }
        let group: Vec<&str> =
            reached.keys().copied().filter(|other| leads(name, other) && leads(other, name)).collect();
        seen.extend(group.iter().copied());
        let shortest = group.iter().map(|start| back(start, &reached[start])).min_by_key(Vec::len);
        found.push((group.into_iter().map(str::to_owned).collect(), shortest.unwrap_or_default()));
    }
    found
}

/// Returns every reachable module, with its predecessor on a shortest path.
fn reach<'a>(level: &'a Level<'_>, start: &'a str) -> BTreeMap<&'a str, &'a str> {
    let mut before = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for next in level.get(at).into_iter().flat_map(BTreeMap::keys) {
            if !before.contains_key(next.as_str()) {
                before.insert(next.as_str(), at);
                queue.push_back(next);
            }
        }
    }
    before
}

/// Returns the shortest path from a module back to itself, with the module at both ends.
fn back(start: &str, before: &BTreeMap<&str, &str>) -> Vec<String> {
    let mut way = vec![start.to_owned()];
    let mut at = start;
    while let Some(&previous) = before.get(at) {
        way.push(previous.to_owned());
        at = previous;
        if at == start {
            break;
        }
    }
    way.reverse();
    way
}

fn describe(level: &Level<'_>, group: &[String], cycle: &[String]) -> String {
    let mut text = cycle.join(" → ");
    if group.len() + 1 > cycle.len() {
        let _ = write!(text, " (one cycle among {} modules)", group.len());
    }
    text.push_str("; move the parts that both need below both, or invert one dependency");
    for pair in cycle.windows(2) {
        if let Some(Reference { file, name }) = level.get(&pair[0]).and_then(|to| to.get(&pair[1])) {
            let _ = write!(text, "\n    {} → {}: {file} names {name}", pair[0], pair[1]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_crate(files: &[(&str, &str)], expect: &[(&str, &str)]) {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source::parse(&format!("crates/a/src/{path}"), text).unwrap())
            .collect();
        let package = Package { name: "narthex-a".into(), folder: "crates/a".into(), dependencies: vec![] };
        let findings = check(&package, &sources);
        let found: Vec<(&str, &str)> = findings
            .iter()
            .map(|f| {
                (
                    f.subject.trim_start_matches("crates/a/src"),
                    f.message.split([';', '(']).next().unwrap().trim(),
                )
            })
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn siblings_that_name_each_other_are_a_cycle() {
        check_crate(
            &[
                ("lib.rs", "mod b; mod c; mod d;"),
                ("b.rs", "use crate::c::C; pub struct B;"),
                ("c.rs", "pub struct C(super::d::D);"),
                ("d.rs", "pub struct D; fn f() { println!(\"{}\", crate::b::B::NAME); }"),
            ],
            &[("::b+c+d", "b → c → d → b")],
        );
    }

    #[test]
    fn each_arrow_names_a_file_and_a_name() {
        let files =
            [("b.rs", "use crate::c::{C};"), ("c/x.rs", "use crate::b::f as g;"), ("c/mod.rs", "mod x;")];
        let sources = files.map(|(path, text)| Source::parse(&format!("crates/a/src/{path}"), text).unwrap());
        let package = Package { name: "narthex-a".into(), folder: "crates/a".into(), dependencies: vec![] };
        let message = &check(&package, &sources)[0].message;
        let arrows: Vec<&str> = message.lines().skip(1).map(str::trim).collect();
        assert_eq!(
            arrows,
            ["b → c: crates/a/src/b.rs names crate::c::C", "c → b: crates/a/src/c/x.rs names crate::b::f"]
        );
    }

    #[test]
    fn a_parent_and_its_children_count_as_one() {
        check_crate(
            &[
                ("lib.rs", "mod b; mod c; pub use b::B;"),
                ("b/mod.rs", "mod x; mod y; use x::X; pub struct B;"),
                ("b/x.rs", "use super::B; use super::y::Y; pub struct X;"),
                ("b/y.rs", "pub struct Y;"),
                ("c.rs", "use crate::B;"),
            ],
            &[],
        );
    }

    #[test]
    fn cycles_are_found_below_a_parent() {
        check_crate(
            &[
                ("b/mod.rs", "mod x; mod y;"),
                ("b/x.rs", "use super::y::Y; pub struct X;"),
                ("b/y.rs", "pub struct Y(crate::b::x::X);"),
            ],
            &[("/b::x+y", "x → y → x")],
        );
    }

    #[test]
    fn names_of_the_parent_lead_to_where_they_are_defined() {
        let through = |export: &str| {
            check_crate(
                &[
                    ("lib.rs", export),
                    ("b.rs", "use crate::C; pub struct B;"),
                    ("c.rs", "use crate::b::B; pub struct C;"),
                ],
                &[("::b+c", "b → c → b")],
            );
        };
        through("mod b; mod c; pub use c::C;");
        through("mod b; mod c; pub use crate::c::*;");
    }

    #[test]
    fn imported_modules_are_followed_in_paths() {
        check_crate(
            &[
                ("b/mod.rs", "mod x; mod y;"),
                ("b/x.rs", "use crate::b; fn f() { b::y::g(); }"),
                ("b/y.rs", "use super::x; pub fn g() { x::f() }"),
            ],
            &[("/b::x+y", "x → y → x")],
        );
    }

    #[test]
    fn tests_other_crates_and_local_names_do_not_count() {
        check_crate(
            &[
                ("lib.rs", "mod b; mod c;"),
                ("b.rs", "use crate::c::C; use std::c::D; enum E { F } fn f() { E::F; other::c::g(); }"),
                ("c.rs", "pub struct C; #[cfg(test)] mod tests { use crate::b; }"),
                ("c/tests.rs", "use crate::b;"),
            ],
            &[],
        );
    }
}
