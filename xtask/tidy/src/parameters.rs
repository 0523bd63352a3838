//! Facts about the parameter list of a function.

use syn::{FnArg, Pat, Signature, Type};

/// Counts the parameters of one input; a tuple counts as its elements.
pub(super) fn width(input: &FnArg) -> usize {
    fn of_type(ty: &Type) -> usize {
        match ty {
            Type::Tuple(tuple) if !tuple.elems.is_empty() => tuple.elems.iter().map(of_type).sum(),
            Type::Reference(reference) => of_type(&reference.elem),
            Type::Paren(paren) => of_type(&paren.elem),
            _ => 1,
        }
    }
    fn of_pattern(pattern: &Pat) -> usize {
        match pattern {
            Pat::Tuple(tuple) if !tuple.elems.is_empty() => tuple.elems.iter().map(of_pattern).sum(),
            Pat::Reference(reference) => of_pattern(&reference.pat),
            Pat::Paren(paren) => of_pattern(&paren.pat),
            _ => 1,
        }
    }
    match input {
        FnArg::Typed(typed) => of_type(&typed.ty).max(of_pattern(&typed.pat)),
        FnArg::Receiver(_) => 1,
    }
}

/// Returns the names in a parameter with a tuple pattern, such as `(a, b)`.
pub(super) fn tuple_pattern(input: &FnArg) -> Option<String> {
    fn shown(pattern: &Pat) -> String {
        match pattern {
            Pat::Tuple(tuple) => {
                format!("({})", tuple.elems.iter().map(shown).collect::<Vec<_>>().join(", "))
            }
            Pat::Ident(name) => name.ident.to_string(),
            _ => "_".to_owned(),
        }
    }
    let FnArg::Typed(typed) = input else { return None };
    let mut pattern = &*typed.pat;
    while let Pat::Reference(reference) = pattern {
        pattern = &*reference.pat;
    }
    matches!(pattern, Pat::Tuple(_)).then(|| shown(pattern))
}

/// Returns the names of the parameters of type `bool`.
pub(super) fn flags(signature: &Signature) -> Vec<String> {
    let flag = |input: &FnArg| match input {
        FnArg::Typed(typed) => match &*typed.ty {
            Type::Path(path) if path.path.is_ident("bool") => match &*typed.pat {
                syn::Pat::Ident(pattern) => Some(pattern.ident.to_string()),
                _ => Some("_".to_owned()),
            },
            _ => None,
        },
        FnArg::Receiver(_) => None,
    };
    signature.inputs.iter().filter_map(flag).collect()
}

#[cfg(test)]
mod tests {
    use syn::parse_str;

    use super::*;

    #[test]
    fn tuples_count_as_their_elements() {
        let check = |text: &str, parameters: usize, tuples: &[&str]| {
            let inputs = parse_str::<Signature>(text).unwrap().inputs;
            assert_eq!(inputs.iter().map(width).sum::<usize>(), parameters, "{text}");
            assert_eq!(inputs.iter().filter_map(tuple_pattern).collect::<Vec<_>>(), tuples, "{text}");
        };
        check("fn f(a: u8, (b, (c, _)): (u8, (u8, u8)), d: &(u8, u8))", 6, &["(b, (c, _))"]);
        check("fn f(pairs: &[(u8, u8)], nothing: (), Wrapper(a): Wrapper)", 3, &[]);
        check("fn f(&self, &(a, b): &Pair)", 3, &["(a, b)"]);
        check("fn f(&self, a: (u8, u8))", 3, &[]);
    }
}
