//! Attributes that decide whether an item belongs to the product.

use syn::{Attribute, ImplItem, Item, Meta, TraitItem};

/// The attributes of an item of a common kind.
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

/// Returns whether the attributes contain `#[cfg(test)]` or `#[test]`.
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

/// Returns whether an item is built for tests alone.
pub(super) fn is_for_tests(item: &Item) -> bool {
    are_for_tests(attributes(item))
}

/// Returns whether an item of an implementation is built for tests alone.
pub(super) fn is_impl_item_for_tests(item: &ImplItem) -> bool {
    matches!(item, ImplItem::Fn(method) if are_for_tests(&method.attrs))
}

/// Returns whether an item of a trait is built for tests alone.
pub(super) fn is_trait_item_for_tests(item: &TraitItem) -> bool {
    matches!(item, TraitItem::Fn(method) if are_for_tests(&method.attrs))
}
