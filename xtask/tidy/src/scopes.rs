//! Facts about the modules of a source file: the items, imports and paths of each. [`super::cycles`] builds the graph
//! from them.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, File, ImplItem, Item, ItemMod, ItemUse, TraitItem, UseTree, VisRestricted,
    visit::{self, Visit},
};

use crate::attributes::{is_for_tests, is_impl_item_for_tests, is_trait_item_for_tests};

/// One module: a file, or a `mod` with a body. Items that are built only for tests are left out.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    /// Names of the inline modules around it within the file.
    pub(crate) inline: Vec<String>,
    /// Names of its items.
    pub(crate) items: BTreeSet<String>,
    /// Names of its structs, enums, unions, traits and type aliases, in order.
    pub(crate) types: Vec<String>,
    /// Its imports, including those in function bodies.
    pub(crate) imports: Vec<Import>,
    /// Paths of at least two segments, including those in macro calls.
    pub(crate) paths: Vec<Vec<String>>,
}

/// One leaf of a `use` declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Import {
    /// The imported path; for `a::*` the path `a`.
    pub(crate) path: Vec<String>,
    /// Local name of the import; `None` for a glob.
    pub(crate) name: Option<String>,
}

/// Returns the file's own module first, then the modules inside it.
pub(crate) fn read(file: &File) -> Vec<Scope> {
    let mut reader = ScopeReader { scopes: vec![Scope::default()], current: 0, in_body: false };
    reader.visit_file(file);
    reader.scopes
}

struct ScopeReader {
    scopes: Vec<Scope>,
    current: usize,
    in_body: bool,
}

impl ScopeReader {
    fn scope(&mut self) -> &mut Scope {
        &mut self.scopes[self.current]
    }

    fn define(&mut self, item: &Item) {
        let (ident, is_type) = match item {
            Item::Struct(item) => (&item.ident, true),
            Item::Enum(item) => (&item.ident, true),
            Item::Union(item) => (&item.ident, true),
            Item::Trait(item) => (&item.ident, true),
            Item::Type(item) => (&item.ident, true),
            Item::Const(item) => (&item.ident, false),
            Item::Static(item) => (&item.ident, false),
            Item::Fn(item) => (&item.sig.ident, false),
            Item::Mod(item) => (&item.ident, false),
            Item::Macro(item) => match &item.ident {
                Some(ident) => (ident, false),
                None => return,
            },
            _ => return,
        };
        let (name, in_body) = (ident.to_string(), self.in_body);
        let scope = self.scope();
        if is_type {
            scope.types.push(name.clone());
        }
        if !in_body {
            scope.items.insert(name);
        }
    }

    fn import(&mut self, prefix: &[String], tree: &UseTree) {
        let extended = |name: &dyn ToString| [prefix, &[name.to_string()]].concat();
        // `use a::{self}` imports `a` itself.
        let leaf = |name: &dyn ToString| match name.to_string().as_str() {
            "self" if !prefix.is_empty() => prefix.to_vec(),
            _ => extended(name),
        };
        match tree {
            UseTree::Path(path) => self.import(&extended(&path.ident), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(prefix, tree)),
            UseTree::Glob(_) => self.scope().imports.push(Import { path: prefix.to_vec(), name: None }),
            UseTree::Name(name) => {
                let path = leaf(&name.ident);
                let name = path.last().cloned();
                self.scope().imports.push(Import { path, name });
            }
            UseTree::Rename(rename) => {
                let import = Import { path: leaf(&rename.ident), name: Some(rename.rename.to_string()) };
                self.scope().imports.push(import);
            }
        }
    }

    /// Finds paths such as `a::b` among unparsed tokens.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_path(&mut path);
                    }
                    path.push(ident.to_string());
                }
                TokenTree::Group(group) => {
                    self.end_path(&mut path);
                    self.read_tokens(group.stream());
                }
                _ => self.end_path(&mut path),
            }
            colons = 0;
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Vec<String>) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.scope().paths.push(path);
        }
    }
}

impl<'ast> Visit<'ast> for ScopeReader {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(item) {
            self.define(item);
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !is_impl_item_for_tests(item) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        if !is_trait_item_for_tests(item) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let Some((_, items)) = &item.content else { return };
        let mut inline = self.scope().inline.clone();
        inline.push(item.ident.to_string());
        let outer = self.current;
        self.current = self.scopes.len();
        self.scopes.push(Scope { inline, ..Scope::default() });
        items.iter().for_each(|item| self.visit_item(item));
        self.current = outer;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&[], &item.tree);
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        let outer = std::mem::replace(&mut self.in_body, true);
        visit::visit_block(self, block);
        self.in_body = outer;
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let mut segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.end_path(&mut segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.read_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_becomes_scopes() {
        let text = "use crate::{a::{self, B as C}, d::*};
            pub(in crate::hidden) struct Outer(crate::e::E);
            fn f() { use super::g::G; struct Local; println!(\"{}\", crate::h::I::new(x.y)); }
            mod inner { type Alias = super::Outer; #[cfg(test)] use crate::z::Z; }
            #[cfg(test)] mod tests { use crate::z::Z; }";
        let scopes = read(&syn::parse_file(text).unwrap());
        let [file, inner] = scopes.as_slice() else { panic!("{scopes:?}") };
        let imports: Vec<_> = file
            .imports
            .iter()
            .map(|import| (import.path.join("::"), import.name.as_deref().unwrap_or("*")))
            .collect();
        let expect = [("crate::a", "a"), ("crate::a::B", "C"), ("crate::d", "*"), ("super::g::G", "G")];
        assert_eq!(imports, expect.map(|(path, name)| (path.to_owned(), name)));
        let paths: Vec<_> = file.paths.iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["crate::e::E", "crate::h::I::new"]);
        assert_eq!(file.types, ["Outer", "Local"]);
        assert_eq!(file.items.iter().map(String::as_str).collect::<Vec<_>>(), ["Outer", "f", "inner"]);
        assert_eq!(
            (inner.inline.as_slice(), inner.types.as_slice()),
            (&["inner".to_owned()][..], &["Alias".to_owned()][..])
        );
        assert_eq!(inner.paths, [["super", "Outer"]]);
    }
}
