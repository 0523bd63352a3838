//! Names that users give to packages.

use narthex_catalog::resolve::{Location, ModelId, ModelRef, local_path, local_source};
use narthex_spec::{ModelName, Scheme};

use crate::{
    error::Error,
    library::{Library, package_key::PackageKey},
};

impl Library {
    /// Returns the reference to the checkpoint of a package. A name that only installed packages have stands for the local
    /// checkpoint of one of them, so that it can be compiled in another scheme.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], with the installed schemes, if no package states a checkpoint that still exists;
    /// [`Error::Invalid`] if the package is not the model of its checkpoint, but for example a part of it.
    pub(crate) fn checkpoint_reference(
        &self,
        reference: &ModelRef,
        key: &PackageKey,
    ) -> Result<ModelRef, Error> {
        let ModelRef::Id(ModelId::Catalogue(name)) = reference else { return Ok(reference.clone()) };
        let installed = self.installed_schemes(name);
        if self.catalog.get(name).is_some() || installed.is_empty() {
            return Ok(reference.clone());
        }

        let mut sources = installed.into_iter().filter_map(|scheme| {
            let manifest = self.manifest(&PackageKey { name: name.clone(), scheme }).ok()?;
            let path = local_path(&manifest.provenance.source).filter(|path| path.exists())?;
            Some((path, manifest.recipe))
        });
        match sources.next() {
            None => Err(self.not_installed(key)),
            Some((path, recipe)) if recipe.is_another_model() => {
                let message = format!(
                    "{name} is not the model of its checkpoint: it was compiled with an adapter, or reduced or extended; compile \
                     {} again with the same options",
                    path.display()
                );
                Err(Error::invalid("model", message))
            }
            Some((path, _)) => Ok(ModelRef::Local(path)),
        }
    }

    /// Fails if the package of a compile cannot have this name; `model` is the name of the compiled model.
    pub(crate) fn check_compile_name(
        &self,
        name: &ModelName,
        model: &ModelName,
        reference: &ModelRef,
    ) -> Result<(), Error> {
        let resolved = reference.resolve(&self.catalog)?;
        let source = match &resolved.source {
            Location::Local(path) => local_source(path)?,
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
