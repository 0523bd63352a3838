//! Facts about the doc comments and string literals of a source file.

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Expr, File, ImplItem, Item, Lit, LitStr, Meta, MetaNameValue, TraitItem,
    spanned::Spanned,
    visit::{self, Visit},
};

use crate::attributes::{is_for_tests, is_impl_item_for_tests, is_trait_item_for_tests};

/// A line of a doc comment, or a string literal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Text {
    /// Line number.
    pub(super) line: usize,
    /// Its kind.
    pub(super) kind: TextKind,
    /// Contents.
    pub(super) text: String,
}

/// Kinds of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextKind {
    /// The first line of a doc comment.
    Opening,
    /// A further line of a doc comment.
    Continuation,
    /// A string literal.
    Literal,
}

/// Returns the doc comments and string literals of a file outside its tests.
pub(crate) fn read(file: &File) -> Vec<Text> {
    let mut reader = TextReader::default();
    reader.visit_file(file);
    reader.texts
}

#[derive(Default)]
struct TextReader {
    texts: Vec<Text>,
    /// Line of the last doc attribute, and whether it was an inner one.
    last_doc: Option<(usize, bool)>,
}

impl TextReader {
    fn doc(&mut self, attribute: &Attribute, text: &LitStr) {
        let (line, inner) =
            (attribute.span().start().line, matches!(attribute.style, syn::AttrStyle::Inner(_)));
        let continues = self.last_doc == Some((line.saturating_sub(1), inner));
        let kind = if continues { TextKind::Continuation } else { TextKind::Opening };
        self.last_doc = Some((line, inner));
        self.texts.push(Text { line, kind, text: text.value() });
    }

    fn literal(&mut self, literal: &LitStr) {
        let line = literal.span().start().line;
        self.texts.push(Text { line, kind: TextKind::Literal, text: literal.value() });
    }

    fn read_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.read_tokens(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Lit::Str(literal) = Lit::new(literal) {
                        self.literal(&literal);
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for TextReader {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(item) {
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

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::NameValue(MetaNameValue { path, value: Expr::Lit(value), .. }) => match &value.lit {
                Lit::Str(text) if path.is_ident("doc") => self.doc(attribute, text),
                Lit::Str(text) => self.literal(text),
                _ => {}
            },
            Meta::List(list) => self.read_tokens(list.tokens.clone()),
            Meta::NameValue(_) | Meta::Path(_) => {}
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.read_tokens(call.tokens.clone());
    }

    fn visit_lit_str(&mut self, literal: &'ast LitStr) {
        self.literal(literal);
    }
}
