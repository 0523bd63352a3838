//! Facts about Rust sources, on which the rules are based: lengths, names, parameters, lints that are switched off.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use syn::{
    Attribute, ImplItemFn, Item, ItemEnum, ItemFn, ItemImpl, ItemMod, ItemStruct, ItemTrait, ItemType, Local,
    Meta, Signature, Token, TraitItem, TraitItemFn, Visibility,
    punctuated::Punctuated,
    spanned::Spanned,
    visit::{self, Visit},
};

use xtask_workspace::workspace::{Package, relative};

use crate::{
    attributes::{are_for_tests, is_for_tests},
    dense_code::DenseCode,
    parameters::{flags, tuple_pattern, width},
    scopes::{self, Scope},
    texts::{self, Text},
};

/// Purpose of a source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Part of a crate.
    Product,
    /// Only for tests.
    Tests,
}

/// Names of files whose submodules are in the same folder.
const ROOTS: [&str; 3] = ["lib", "main", "mod"];

/// One source file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path relative to the root, with forward slashes.
    pub(crate) path: String,
    /// Its purpose.
    pub(crate) role: Role,
    /// Number of lines outside items that are built only for tests.
    pub(crate) lines: usize,
    /// Set if it starts with `//!`.
    pub(crate) has_docs: bool,
    /// Its functions with a body, without tests.
    pub(crate) functions: Vec<Function>,
    /// Its traits.
    pub(crate) traits: Vec<Trait>,
    /// All names that it defines, including those in tests.
    pub(crate) names: Vec<NamedItem>,
    /// Lints that it allows or expects outside tests; in tests, only `unsafe_code`.
    pub(crate) escapes: Vec<String>,
    /// Dense code in its functions, without tests.
    pub(crate) density: DenseCode,
    /// Its modules, without tests.
    pub(crate) scopes: Vec<Scope>,
    /// Its doc comments and string literals, without tests.
    pub(crate) texts: Vec<Text>,
    /// Modules in other files that it declares only for tests.
    test_modules: Vec<String>,
}

/// A function or method.
#[derive(Debug)]
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// Number of lines of its body that are neither blank nor comments.
    pub(crate) lines: usize,
    /// Parameters of type `bool`, if other crates may call the function.
    pub(crate) flags: Vec<String>,
    /// Number of its parameters. A receiver counts as one, a tuple as its elements. A method in an implementation of a
    /// trait has 0, because the trait determines them.
    pub(crate) parameters: usize,
    /// Parameters with a tuple pattern, as in the source.
    pub(crate) tuples: Vec<String>,
}

/// A trait.
#[derive(Debug)]
pub(crate) struct Trait {
    /// Its name.
    pub(crate) name: String,
    /// Number of methods without a body.
    pub(crate) required: usize,
}

/// A name that the source defines.
#[derive(Debug)]
pub(crate) struct NamedItem {
    /// Kind of the named item.
    pub(crate) kind: NameKind,
    /// The name.
    pub(crate) name: String,
}

/// Kinds of named items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameKind {
    /// A struct, enum, trait or alias.
    Type,
    /// A module or a file.
    Module,
    /// A function or method.
    Function,
}

/// Reads every Rust source of the packages, in order of path.
pub(crate) fn read_all(root: &Path, packages: &[Package]) -> anyhow::Result<Vec<Source>> {
    let mut files = Vec::new();
    for package in packages {
        for part in ["src", "tests", "benches", "examples"] {
            collect(&root.join(&package.folder).join(part), &mut files)?;
        }
    }
    files.sort();
    let read = |path: &PathBuf, role: fn(&str) -> Role| {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let path = relative(path, root);
        Source::parse_as(&path, &text, role(&path))
    };
    let mut sources: Vec<Source> =
        files.iter().map(|path| read(path, role)).collect::<anyhow::Result<_>>()?;
    // Only the parent file declares that a module is for tests, so such files are read again under that role.
    let for_tests: Vec<String> = sources.iter().flat_map(Source::test_module_paths).collect();
    for (source, file) in sources.iter_mut().zip(&files) {
        let path = source.path.trim_end_matches(".rs").trim_end_matches("/mod");
        if source.role == Role::Product && for_tests.iter().any(|tests| tests == path) {
            *source = read(file, |_| Role::Tests)?;
        }
    }
    Ok(sources)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

impl Source {
    /// Parses the text of one file, whose role follows from its path.
    #[cfg(test)]
    pub(crate) fn parse(path: &str, text: &str) -> anyhow::Result<Self> {
        Self::parse_as(path, text, role(path))
    }

    fn parse_as(path: &str, text: &str, role: Role) -> anyhow::Result<Self> {
        let file = syn::parse_file(text).with_context(|| format!("{path} is not Rust"))?;
        let mut walk = Walk::new(text, role);
        walk.visit_file(&file);
        let stem = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
        if !ROOTS.contains(&stem) {
            walk.name(NameKind::Module, stem);
        }
        let for_tests: Vec<&Item> = file.items.iter().filter(|item| is_for_tests(item)).collect();
        let tests: usize = for_tests.iter().map(|item| height(item)).sum();
        let test_code: usize = for_tests.iter().map(|item| count_code(walk.lines_of(item))).sum();
        walk.density.code = count_code(&walk.text);
        Ok(Self {
            path: path.to_owned(),
            role,
            lines: text.lines().count().saturating_sub(tests),
            has_docs: file.attrs.iter().any(|attribute| attribute.path().is_ident("doc")),
            functions: walk.functions,
            traits: walk.traits,
            names: walk.names,
            escapes: walk.escapes,
            density: DenseCode { code: walk.density.code.saturating_sub(test_code), ..walk.density },
            scopes: scopes::read(&file),
            texts: texts::read(&file),
            test_modules: file.items.iter().filter_map(test_module).collect(),
        })
    }

    /// Returns the paths, without `.rs`, of the modules that this one declares for tests.
    fn test_module_paths(&self) -> Vec<String> {
        let (folder, file) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let stem = file.trim_end_matches(".rs");
        let inner = if ROOTS.contains(&stem) { folder.to_owned() } else { format!("{folder}/{stem}") };
        self.test_modules.iter().map(|name| format!("{inner}/{name}")).collect()
    }
}

/// Returns the name of a module that a file declares for tests and that is in a file of its own.
fn test_module(item: &Item) -> Option<String> {
    match item {
        Item::Mod(item) if item.content.is_none() && are_for_tests(&item.attrs) => {
            Some(item.ident.to_string())
        }
        _ => None,
    }
}

fn role(path: &str) -> Role {
    let for_tests = path.split('/').any(|part| ["tests", "benches", "examples", "tests.rs"].contains(&part));
    if for_tests { Role::Tests } else { Role::Product }
}

/// Counts the lines from an item's first attribute or comment to its end.
fn height(item: &Item) -> usize {
    let span = item.span();
    span.end().line + 1 - span.start().line
}

/// Counts the lines that are neither blank nor comments.
fn count_code(lines: &[&str]) -> usize {
    lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// Collects the facts of one file.
struct Walk<'a> {
    text: Vec<&'a str>,
    role: Role,
    in_trait_impl: bool,
    functions: Vec<Function>,
    traits: Vec<Trait>,
    names: Vec<NamedItem>,
    escapes: Vec<String>,
    density: DenseCode,
}

impl<'a> Walk<'a> {
    fn new(text: &'a str, role: Role) -> Self {
        let text = text.lines().collect();
        Self {
            text,
            role,
            in_trait_impl: false,
            functions: vec![],
            traits: vec![],
            names: vec![],
            escapes: vec![],
            density: DenseCode::default(),
        }
    }

    fn name(&mut self, kind: NameKind, name: impl ToString) {
        self.names.push(NamedItem { kind, name: name.to_string() });
    }

    /// Visits an item under its attributes, as test code if they mark it so.
    fn under(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let before = self.role;
        if are_for_tests(attributes) {
            self.role = Role::Tests;
        }
        visit(self);
        self.role = before;
    }

    fn function(&mut self, signature: &Signature, block: Option<&syn::Block>, called_from: CalledFrom) {
        self.name(NameKind::Function, &signature.ident);
        if self.role == Role::Tests {
            return;
        }
        let flags = match called_from {
            CalledFrom::Anywhere => flags(signature),
            CalledFrom::ThisCrate => vec![],
        };
        let lines = block.map_or(0, |block| self.code_lines(block));
        if let Some(block) = block {
            self.density.function(signature, block, &self.text);
        }
        let inputs = if self.in_trait_impl { &Punctuated::new() } else { &signature.inputs };
        self.functions.push(Function {
            name: signature.ident.to_string(),
            lines,
            flags,
            parameters: inputs.iter().map(width).sum(),
            tuples: inputs.iter().filter_map(tuple_pattern).collect(),
        });
    }

    /// Counts the lines inside a block's braces that are neither blank nor comments.
    fn code_lines(&self, block: &syn::Block) -> usize {
        let span = block.span();
        let (first, last) = (span.start().line, span.end().line.saturating_sub(1));
        let inside = self.text.get(first..last.max(first)).unwrap_or_default();
        count_code(inside)
    }

    /// Returns the lines of an item.
    fn lines_of(&self, item: &Item) -> &[&'a str] {
        let span = item.span();
        self.text.get(span.start().line - 1..span.end().line).unwrap_or_default()
    }
}

/// Possible callers of a function.
#[derive(Clone, Copy)]
enum CalledFrom {
    Anywhere,
    ThisCrate,
}

impl From<&Visibility> for CalledFrom {
    fn from(visibility: &Visibility) -> Self {
        if matches!(visibility, Visibility::Public(_)) { Self::Anywhere } else { Self::ThisCrate }
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.name(NameKind::Module, &item.ident);
        self.under(&item.attrs, |walk| visit::visit_item_mod(walk, item));
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let outer = std::mem::replace(&mut self.in_trait_impl, item.trait_.is_some());
        self.under(&item.attrs, |walk| visit::visit_item_impl(walk, item));
        self.in_trait_impl = outer;
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.name(NameKind::Type, &item.ident);
        self.under(&item.attrs, |walk| visit::visit_item_struct(walk, item));
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        self.name(NameKind::Type, &item.ident);
        self.under(&item.attrs, |walk| visit::visit_item_enum(walk, item));
    }

    fn visit_item_type(&mut self, item: &'ast ItemType) {
        self.name(NameKind::Type, &item.ident);
        self.under(&item.attrs, |walk| visit::visit_item_type(walk, item));
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.name(NameKind::Type, &item.ident);
        let required =
            item.items.iter().filter(|item| matches!(item, TraitItem::Fn(f) if f.default.is_none()));
        self.traits.push(Trait { name: item.ident.to_string(), required: required.count() });
        self.under(&item.attrs, |walk| {
            for inner in &item.items {
                if let TraitItem::Fn(method) = inner {
                    walk.function(&method.sig, method.default.as_ref(), CalledFrom::from(&item.vis));
                }
            }
            visit::visit_item_trait(walk, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        // The method itself was counted with its trait.
        self.under(&item.attrs, |walk| visit::visit_trait_item_fn(walk, item));
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        let outer = std::mem::take(&mut self.in_trait_impl);
        self.under(&item.attrs, |walk| {
            walk.function(&item.sig, Some(&item.block), CalledFrom::from(&item.vis));
            visit::visit_item_fn(walk, item);
        });
        self.in_trait_impl = outer;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.under(&item.attrs, |walk| {
            walk.function(&item.sig, Some(&item.block), CalledFrom::from(&item.vis));
            visit::visit_impl_item_fn(walk, item);
        });
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if self.role == Role::Product {
            self.density.local(local);
        }
        visit::visit_local(self, local);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let Meta::List(list) = &attribute.meta else { return };
        if !list.path.is_ident("allow") && !list.path.is_ident("expect") {
            return;
        }
        let Ok(lints) = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated) else { return };
        for lint in lints.iter().filter_map(|meta| meta.require_path_only().ok()) {
            let parts: Vec<_> = lint.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let lint = parts.join("::");
            if self.role == Role::Product || lint == "unsafe_code" {
                self.escapes.push(lint);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "//! Docs.

use std::fmt;

/// A port.
pub trait Port {
    fn one(&self);
    fn two(&self, loud: bool) -> u8 {
        // Not counted.

        if loud { 1 } else { 2 }
    }
}

#[allow(unsafe_code, reason = \"no other way\")]
pub(crate) fn long(quiet: bool) {
    step();
    step();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    fn inside_tests() {}
}
";

    #[test]
    fn a_file_becomes_facts() {
        let source = Source::parse("crates/a/src/port.rs", TEXT).unwrap();
        assert_eq!((source.role, source.has_docs), (Role::Product, true));
        assert_eq!(source.lines, TEXT.lines().count() - 5);
        let functions: Vec<_> =
            source.functions.iter().map(|f| (f.name.as_str(), f.lines, f.flags.len())).collect();
        assert_eq!(functions, [("one", 0, 0), ("two", 1, 1), ("long", 2, 0)]);
        assert_eq!(
            source.traits.iter().map(|t| (t.name.as_str(), t.required)).collect::<Vec<_>>(),
            [("Port", 1)]
        );
        assert_eq!(source.escapes, ["unsafe_code"]);
        let names: Vec<_> = source.names.iter().map(|named| named.name.as_str()).collect();
        assert_eq!(names, ["Port", "one", "two", "long", "tests", "inside_tests", "port"]);
    }

    #[test]
    fn test_items_in_the_middle_do_not_hide_what_follows() {
        let text = "#[cfg(test)]\nfn early() {}\nfn late() {}\n";
        assert_eq!(Source::parse("crates/a/src/b.rs", text).unwrap().lines, 1);
    }

    #[test]
    fn a_path_gives_a_file_its_role() {
        for path in ["crates/a/tests/b.rs", "crates/a/src/b/tests.rs", "crates/a/tests/standin/mod.rs"] {
            assert_eq!(role(path), Role::Tests, "{path}");
        }
        assert_eq!(role("crates/testkit/src/lib.rs"), Role::Product);
    }

    #[test]
    fn modules_declared_for_tests_have_paths() {
        let paths = |path: &str| {
            let text = "#[cfg(test)]\nmod examples;\nmod b;\n#[cfg(test)]\nmod tests {}\n";
            Source::parse(path, text).unwrap().test_module_paths()
        };
        assert_eq!(paths("crates/a/src/lib.rs"), ["crates/a/src/examples"]);
        assert_eq!(paths("crates/a/src/c.rs"), ["crates/a/src/c/examples"]);
    }

    #[test]
    fn text_that_is_not_rust_is_an_error_with_the_path() {
        let error = Source::parse("crates/a/src/b.rs", "fn (").unwrap_err();
        assert!(error.to_string().contains("crates/a/src/b.rs"), "{error}");
    }
}
