//! Names of models that upstreams answer.

use crate::{
    error::Error,
    library::{Library, package_key::PackageKey},
    upstream_settings::UpstreamRule,
};

impl Library {
    /// Returns the model that a client's text names, without the default model.
    pub(crate) fn known(&self, model: &str) -> Result<PackageKey, Error> {
        let model = model.trim();
        Ok(self.named(self.config.alias(model).unwrap_or(model))?.key)
    }

    /// Refuses rules whose model is not one of an upstream.
    pub(super) fn check_rules(&self) -> Result<(), Error> {
        let mut rules = self.config.models.values().filter_map(|settings| settings.upstream.as_ref());
        match rules.find(|rule| self.config.upstream_route(&rule.model).is_none()) {
            Some(UpstreamRule { model, .. }) => {
                let message = format!("expected a model of an upstream, as in NAME/MODEL, found {model:?}");
                Err(Error::invalid("upstream", message))
            }
            None => Ok(()),
        }
    }
}
