//! How a user's text names a package: `smollm2:135m`, or `smollm2:135m@w4` for a scheme other than the usual.

use narthex_spec::{ModelName, Scheme};

/// A package of the store: one model in one scheme.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PackageKey {
    pub(crate) name: ModelName,
    pub(crate) scheme: Scheme,
}

/// Splits `model@scheme`; what follows a last `@` and is no scheme belongs to the model.
pub(crate) fn split_scheme(text: &str) -> (&str, Option<Scheme>) {
    match text.rsplit_once('@') {
        Some((model, scheme)) => match scheme.parse() {
            Ok(scheme) => (model, Some(scheme)),
            Err(_) => (text, None),
        },
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_may_follow_the_name() {
        let check = |text, model, scheme| assert_eq!(split_scheme(text), (model, scheme));
        check("smollm2:135m", "smollm2:135m", None);
        check("smollm2:135m@w4", "smollm2:135m", Some(Scheme::W4));
        check("hf:o/r@main", "hf:o/r@main", None);
        check("hf:o/r@main@f32", "hf:o/r@main", Some(Scheme::F32));
    }
}
