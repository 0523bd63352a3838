//! Parameters of a request that were ignored, and the header that names them.

use axum::{
    http::{HeaderName, HeaderValue},
    response::Response,
};

/// Header with the names of a request's ignored parameters.
const IGNORED: HeaderName = HeaderName::from_static("x-narthex-ignored");

/// Fields that describe the caller, in OpenAI's and Anthropic's APIs. They never change an answer.
pub(crate) const CALLER_FIELDS: &[&str] = &[
    "user",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
];

/// Names of ignored parameters.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct IgnoredParameters(Vec<&'static str>);

impl IgnoredParameters {
    #[cfg(test)]
    pub(crate) fn names(&self) -> &[&'static str] {
        &self.0
    }

    /// Adds a name.
    pub(crate) fn push(&mut self, name: &'static str) {
        if !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    /// Adds names.
    pub(crate) fn extend(&mut self, names: impl IntoIterator<Item = &'static str>) {
        names.into_iter().for_each(|name| self.push(name));
    }

    /// Returns the first parameter that is refused with `--strict-parameters`.
    pub(crate) fn strict(&self) -> Option<&'static str> {
        self.0.iter().find(|name| !CALLER_FIELDS.contains(name)).copied()
    }

    /// Adds the header with the names to the response, if there are any.
    pub(crate) fn name_in(&self, mut response: Response) -> Response {
        if let Some(names) = HeaderValue::from_str(&self.0.join(", ")).ok().filter(|names| !names.is_empty())
        {
            response.headers_mut().insert(IGNORED, names);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_what_was_ignored() {
        let named = |names: &[&'static str]| IgnoredParameters(names.to_vec()).name_in(Response::default());
        assert_eq!(named(&["store", "verbosity"]).headers()["x-narthex-ignored"], "store, verbosity");
        assert!(named(&[]).headers().is_empty());
        let strict = |names: &[&'static str]| IgnoredParameters(names.to_vec()).strict();
        assert_eq!((strict(&["user", "store"]), strict(&["user"])), (Some("store"), None));
    }
}
