//! Methods for the models of upstreams. The gateway only decides which upstream answers; the server asks it.

use narthex_spec::ModelName;

use super::Gateway;
use crate::{
    error::Error,
    library::RequestedModel,
    upstream_settings::{UpstreamRoute, UpstreamRule},
};

/// A rule that applies to a model, with the model that answers in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamAlternative {
    /// The rule.
    pub rule: UpstreamRule,
    /// Model that answers in its place.
    pub route: UpstreamRoute,
}

/// Models of upstreams.
impl Gateway {
    /// Returns the model of an upstream that a request names, directly or as the default model; `None` for a local model.
    ///
    /// # Errors
    /// [`Error::ModelNotAllowed`] if the caller may not use it.
    pub fn upstream_route(&self, model: &str) -> Result<Option<UpstreamRoute>, Error> {
        let config = self.config();
        if config.upstreams.is_empty() {
            return Ok(None);
        }
        let default = config.default_model.as_deref().and_then(|model| config.upstream_route(model));
        let route = config.upstream_route(model).or_else(|| {
            default.filter(|_| matches!(self.library.known(model), Err(Error::UnknownModel { .. })))
        });
        if let Some(route) = &route {
            self.check_upstream(route)?;
        }
        Ok(route)
    }

    /// Returns the rule that applies to a local model that the caller may use. Models with settings of their own for
    /// answers (`from`) have none, because an upstream does not know those settings.
    pub fn upstream_alternative(&self, model: &str) -> Option<UpstreamAlternative> {
        let config = self.config();
        if config.models.values().all(|settings| settings.upstream.is_none()) {
            return None;
        }
        let RequestedModel { key, .. } = self.library.requested(model).ok()?;
        let is_custom = config.models.get(model.trim()).is_some_and(|settings| settings.from.is_some());
        if is_custom || !self.rights.allows(&key.name) {
            return None;
        }
        let rule = self.library.settings(&key.name)?.upstream.clone()?;
        let route = config.upstream_route(&rule.model)?;
        Some(UpstreamAlternative { rule, route })
    }

    /// Returns true if a model is in memory and a further request would wait for a slot.
    pub fn is_busy(&self, model: &str) -> bool {
        let Ok(RequestedModel { key, .. }) = self.library.requested(model) else { return false };
        let status = self.models.status();
        let found = status.iter().find(|model| model.name == key.name && model.scheme == key.scheme);
        let engine = found.and_then(|model| model.engine.as_ref());
        engine.is_some_and(|engine| engine.running + engine.waiting >= engine.slots)
    }

    /// Returns the listed models of the upstreams that the caller may use.
    pub fn upstream_models(&self) -> Vec<UpstreamRoute> {
        let upstreams = self.config().upstreams.iter();
        let listed = upstreams.flat_map(|(upstream, settings)| {
            settings.models.iter().map(|(name, model)| UpstreamRoute {
                upstream: upstream.clone(),
                name: name.clone(),
                model: model.clone(),
            })
        });
        listed.filter(|route| self.check_upstream(route).is_ok()).collect()
    }

    fn check_upstream(&self, route: &UpstreamRoute) -> Result<(), Error> {
        if self.rights.models.is_empty() {
            return Ok(());
        }
        // A key cannot state every name that an upstream's model may have.
        let name: Result<ModelName, _> = route.name.parse().or_else(|_| route.upstream.parse());
        self.rights.check(&name.map_err(|error| Error::invalid("model", error.to_string()))?)
    }
}
