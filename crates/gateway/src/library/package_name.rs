//! Names that users give to packages.

use narthex_catalog::resolve::{Location, ModelRef};
use narthex_spec::{ModelName, Scheme};

use crate::{
    error::Error,
    library::{Library, package_key::PackageKey},
};

impl Library {
    /// Fails if the package of a compile cannot have this name; `model` is the name of the compiled model.
    pub(crate) fn check_compile_name(
        &self,
        name: &ModelName,
        model: &ModelName,
        reference: &ModelRef,
    ) -> Result<(), Error> {
        let resolved = reference.resolve(&self.catalog)?;
        let source = match &resolved.source {
            Location::Local(path) => format!("local {}", path.display()),
            Location::Hub(hub) => format!("hub {}", hub.repo),
            Location::Wheel { .. } => resolved.provenance,
        };
        self.check_name(name, Some(model), &source)
    }

    /// Fails if the catalogue has a model of this name other than `model`, or if a package of this name has another
    /// source than `source`. In another scheme, the name would stand for two models; in the same scheme, one would
    /// replace the other.
    pub(crate) fn check_name(
        &self,
        name: &ModelName,
        model: Option<&ModelName>,
        source: &str,
    ) -> Result<(), Error> {
        if self.catalog.get(name).is_some_and(|entry| model != Some(&entry.name)) {
            let message = format!("{name} is a model of the catalogue; choose another name with --name");
            return Err(Error::Invalid { param: "name", message });
        }
        for scheme in Scheme::ALL {
            // A package that is absent or unreadable does not take the name.
            let Ok(manifest) = self.manifest(&PackageKey { name: name.clone(), scheme }) else { continue };
            let found = manifest.provenance.source;
            // A commit, a version or the kind of an export may follow.
            let is_same = found
                .strip_prefix(source)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(", ") || rest.starts_with('@'));
            if !is_same {
                return Err(Error::NameTaken { name: name.clone(), found });
            }
        }
        Ok(())
    }
}
