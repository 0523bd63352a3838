//! How a user's text names a package: `smollm2:135m`, or `smollm2:135m@w4` for a scheme other than the usual.

use narthex_spec::{MatFormer, ModelName, Scheme, id::BadModelName};

use crate::error::Error;

/// A package of the store: one model in one scheme.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PackageKey {
    pub(crate) name: ModelName,
    pub(crate) scheme: Scheme,
}

impl PackageKey {
    /// The package of a smaller model that is cut out of this one, called after both: `gemma3n:e4b-e2b`.
    pub(crate) fn cut(self, matformer: Option<&MatFormer>) -> Result<Self, Error> {
        let Some(matformer) = matformer else { return Ok(self) };
        let bad = |error: BadModelName| Error::Invalid { param: "matformer", message: error.to_string() };
        let name = format!("{}-{}", self.name, matformer.slug()).parse().map_err(bad)?;
        Ok(Self { name, ..self })
    }
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
    fn smaller_models_have_names_of_their_own() {
        let key = PackageKey { name: "gemma3n:e4b".parse().unwrap(), scheme: Scheme::W4 };
        let name = |text: &str| key.clone().cut(Some(&text.parse().unwrap())).unwrap().name;
        assert_eq!(name("e2b").as_str(), "gemma3n:e4b-e2b");
        assert_eq!(name("ffn=8192*30,skip=20-24").as_str(), "gemma3n:e4b-ffn8192x30-skip20-24");
        assert_eq!(key.clone().cut(None).unwrap(), key);
        let long = PackageKey { name: "x".repeat(198).parse().unwrap(), ..key };
        assert_eq!(long.cut(Some(&MatFormer::E2b)).unwrap_err().param(), Some("matformer"));
    }

    #[test]
    fn a_scheme_may_follow_the_name() {
        let check = |text, model, scheme| assert_eq!(split_scheme(text), (model, scheme));
        check("smollm2:135m", "smollm2:135m", None);
        check("smollm2:135m@w4", "smollm2:135m", Some(Scheme::W4));
        check("hf:o/r@main", "hf:o/r@main", None);
        check("hf:o/r@main@f32", "hf:o/r@main", Some(Scheme::F32));
    }
}
