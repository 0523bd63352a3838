//! Package names in user input: `smollm2:135m`, or `smollm2:135m@w4` with a weight scheme.

use narthex_spec::{ModelName, Scheme};

/// Key of a package in the store: a model in one weight scheme.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PackageKey {
    pub(crate) name: ModelName,
    pub(crate) scheme: Scheme,
}

/// Splits `model@scheme`. Text after the last `@` that is not a scheme belongs to the model.
pub fn split_scheme(text: &str) -> (&str, Option<Scheme>) {
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
