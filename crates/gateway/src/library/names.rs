//! How a user's text names a package: `smollm2:135m`, or `smollm2:135m@w4` for a scheme other than the usual.

use narthex_compile::vocabulary::Vocabulary;
use narthex_spec::{LayerList, MatFormer, ModelName, Scheme, id::BadModelName};

use crate::{compile::request::CompileRequest, error::Error};

/// A package of the store: one model in one scheme.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PackageKey {
    pub(crate) name: ModelName,
    pub(crate) scheme: Scheme,
}

impl PackageKey {
    /// The package of the smaller model that is made of this one, called after both: `gemma3n:e4b-e2b`,
    /// `smollm2:135m-drop3.7`.
    pub(crate) fn cut(mut self, request: &CompileRequest) -> Result<Self, Error> {
        let parts = [
            ("matformer", request.matformer.as_ref().map(MatFormer::slug)),
            ("drop_layers", request.drop_layers.as_ref().map(LayerList::slug)),
            ("prune_vocabulary", request.vocabulary.as_ref().map(Vocabulary::slug)),
        ];
        for (param, slug) in parts {
            let Some(slug) = slug else { continue };
            let bad = |error: BadModelName| Error::Invalid { param, message: error.to_string() };
            self.name = format!("{}-{slug}", self.name).parse().map_err(bad)?;
        }
        Ok(self)
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
        let plain = CompileRequest::new(Scheme::W4);
        let sized = |text: &str| CompileRequest {
            matformer: Some(text.parse().unwrap()),
            ..CompileRequest::new(Scheme::W4)
        };
        let name = |request: &CompileRequest| key.clone().cut(request).unwrap().name.to_string();
        assert_eq!(name(&sized("e2b")), "gemma3n:e4b-e2b");
        assert_eq!(name(&sized("ffn=8192*30,skip=20-24")), "gemma3n:e4b-ffn8192x30-skip20-24");
        let dropped = CompileRequest { drop_layers: Some("7,3".parse().unwrap()), ..plain.clone() };
        assert_eq!(name(&dropped), "gemma3n:e4b-drop3.7");
        assert_eq!(key.clone().cut(&plain).unwrap(), key);
        let long = PackageKey { name: "x".repeat(198).parse().unwrap(), ..key };
        assert_eq!(long.clone().cut(&sized("e2b")).unwrap_err().param(), Some("matformer"));
        assert_eq!(long.cut(&dropped).unwrap_err().param(), Some("drop_layers"));
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
