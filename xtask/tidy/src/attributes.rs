//! Attributes by which an item belongs to the tests.

use syn::{Attribute, ImplItem, Item, Meta, TraitItem};

/// Returns the attributes of an item.
fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns true if the attributes contain `#[cfg(test)]` or `#[test]`.
pub(super) fn are_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string().replace(' ', "");
            condition == "test" || condition.starts_with("all(test,")
        }
        _ => false,
    })
}

/// Returns true if an item is built only for tests.
pub(super) fn is_for_tests(item: &Item) -> bool {
    are_for_tests(attributes(item))
}

/// Returns true if an item of an implementation is built only for tests.
pub(super) fn is_impl_item_for_tests(item: &ImplItem) -> bool {
    matches!(item, ImplItem::Fn(method) if are_for_tests(&method.attrs))
}

/// Returns true if an item of a trait is built only for tests.
pub(super) fn is_trait_item_for_tests(item: &TraitItem) -> bool {
    matches!(item, TraitItem::Fn(method) if are_for_tests(&method.attrs))
}
