//! What lies in the store and what the catalogue offers.

use std::{collections::BTreeMap, path::Path};

use narthex_catalog::{
    index::{Access, Entry, Kind},
    resolve::{Location, ModelRef, Resolved},
};
use narthex_spec::{ModelName, Scheme, arch::Structure, manifest::Manifest};

use crate::{
    compile::job::scheme_order,
    error::Error,
    gateway::Inner,
    library::{
        names::{PackageKey, split_scheme},
        package,
    },
    report::models::{InstalledPackage, ModelKind, ModelListing},
};

/// The scheme of a model that is named without one.
pub(crate) const USUAL_SCHEME: Scheme = Scheme::W8;

/// The package that a user's text names, whether installed or not.
///
/// Without a scheme: the usual one if it is installed, else any installed one, else the usual one.
pub(crate) fn key(inner: &Inner, model: &str) -> Result<PackageKey, Error> {
    let (text, scheme) = split_scheme(model);
    let name = resolve_name(inner, text)?;
    if let Some(scheme) = scheme.or(inner.config.scheme) {
        return Ok(PackageKey { name, scheme });
    }
    let usual = USUAL_SCHEME;
    let scheme = scheme_order(usual).find(|&scheme| inner.store.package(&name, scheme).is_some());
    Ok(PackageKey { name, scheme: scheme.unwrap_or(usual) })
}

/// As [`key`], for a package that must be there.
pub(crate) fn installed_key(inner: &Inner, model: &str) -> Result<PackageKey, Error> {
    let key = key(inner, model)?;
    match inner.store.package(&key.name, key.scheme) {
        Some(_) => Ok(key),
        None => Err(Error::NotInstalled { name: key.name }),
    }
}

fn resolve_name(inner: &Inner, text: &str) -> Result<ModelName, Error> {
    match reference(inner, text)? {
        ModelRef::Catalogue(name) => Ok(inner.catalog.get(&name).map_or(name, |entry| entry.name.clone())),
        other => Ok(other.resolve(&inner.catalog)?.name),
    }
}

/// What a text without a scheme refers to. Names that are known go first; what is none may lie in the folder where the
/// user stands.
pub(crate) fn reference(inner: &Inner, text: &str) -> Result<ModelRef, Error> {
    let installed =
        |name: &ModelName| Scheme::ALL.iter().any(|&scheme| inner.store.package(name, scheme).is_some());
    if let Ok(name) = text.parse::<ModelName>()
        && (inner.catalog.get(&name).is_some() || installed(&name))
    {
        return Ok(ModelRef::Catalogue(name));
    }
    match ModelRef::parse(text) {
        Ok(ModelRef::Catalogue(_)) | Err(_) if Path::new(text).exists() => Ok(ModelRef::Local(text.into())),
        Ok(ModelRef::Catalogue(_)) | Err(_) => Err(inner.unknown(text)),
        Ok(reference) => Ok(reference),
    }
}

/// What the catalogue says of a model, whether it was named by its name there or by its repository.
pub(crate) fn entry<'a>(inner: &'a Inner, resolved: &Resolved) -> Option<&'a Entry> {
    inner.catalog.get(&resolved.name).or_else(|| match &resolved.source {
        Location::Hub(hub) => inner.catalog.by_repo(&hub.repo),
        Location::Wheel { .. } | Location::Local(_) => None,
    })
}

/// The manifest of an installed package.
pub(crate) fn manifest(inner: &Inner, key: &PackageKey) -> Result<Manifest, Error> {
    let folder = inner
        .store
        .package(&key.name, key.scheme)
        .ok_or_else(|| Error::NotInstalled { name: key.name.clone() })?;
    package::read_manifest(&folder, key)
}

/// Refuses a package whose graph somebody else made: there is no checkpoint to compile, prune or cut.
pub(crate) fn refuse_import(inner: &Inner, key: &PackageKey) -> Result<(), Error> {
    if inner.store.package(&key.name, key.scheme).is_none() {
        return Ok(());
    }
    match manifest(inner, key)?.architecture {
        Structure::Decoder(_) | Structure::Encoder(_) => Ok(()),
        Structure::ImportedDecoder(_) | Structure::ImportedEncoder(_) => {
            let message = format!(
                "model: {} is an import, whose graph stays as it is; compile the checkpoint that it was exported from",
                key.name
            );
            Err(Error::Invalid { param: "model", message })
        }
    }
}

/// One installed package.
pub(crate) fn installed(inner: &Inner, key: &PackageKey) -> Result<InstalledPackage, Error> {
    let Manifest { max_length, bound, .. } = manifest(inner, key)?;
    let packages = inner.store.packages()?;
    let info = packages.iter().find(|info| info.name == key.name && info.scheme == key.scheme);
    let info = info.ok_or_else(|| Error::NotInstalled { name: key.name.clone() })?;
    Ok(InstalledPackage { scheme: key.scheme, bytes: info.bytes, max_length, bound, created: info.created })
}

/// Removes a model's packages, or with `model@scheme` one of them.
pub(crate) fn remove(inner: &Inner, model: &str) -> Result<u64, Error> {
    let (_, scheme) = split_scheme(model);
    let key = installed_key(inner, model)?;
    for other in scheme_order(key.scheme) {
        if scheme.is_none_or(|scheme| scheme == other) {
            inner.residents.evict(&PackageKey { name: key.name.clone(), scheme: other });
        }
    }
    Ok(inner.store.remove(&key.name, scheme)?)
}

/// One model that is installed or in the catalogue, by any of the texts that name it.
pub(crate) fn model(inner: &Inner, text: &str) -> Result<ModelListing, Error> {
    let key = key(inner, text)?;
    if let Some(listing) = models(inner)?.into_iter().find(|listing| listing.name == key.name) {
        return Ok(listing);
    }
    // Lists pass a broken package over; who asks for it by name hears what is wrong with it.
    manifest(inner, &key)?;
    Err(Error::NotInstalled { name: key.name })
}

/// Every installed model and every catalogue entry, by name.
pub(crate) fn models(inner: &Inner) -> Result<Vec<ModelListing>, Error> {
    let mut listings: BTreeMap<ModelName, ModelListing> =
        inner.catalog.entries().iter().map(|entry| (entry.name.clone(), from_entry(entry, inner))).collect();
    for info in inner.store.packages()? {
        let key = PackageKey { name: info.name.clone(), scheme: info.scheme };
        let manifest = match package::read_manifest(&info.dir, &key) {
            Ok(manifest) => manifest,
            Err(error) => {
                tracing::warn!(model = %key.name, %error, "skipping a package");
                continue;
            }
        };
        let listing = listings.entry(info.name.clone()).or_insert_with(|| from_manifest(&manifest));
        listing.installed.push(InstalledPackage {
            scheme: info.scheme,
            bytes: info.bytes,
            max_length: manifest.max_length,
            bound: manifest.bound,
            created: info.created,
        });
    }
    Ok(listings.into_values().collect())
}

fn from_entry(entry: &Entry, inner: &Inner) -> ModelListing {
    ModelListing {
        name: entry.name.clone(),
        kind: match entry.kind {
            Kind::Chat => ModelKind::Chat,
            Kind::Embedding => ModelKind::Embedding,
            Kind::Rerank => ModelKind::Rerank,
            Kind::Answer => ModelKind::Answer,
            Kind::Masked => ModelKind::Masked,
            Kind::Text => ModelKind::Text,
        },
        title: entry.title.clone(),
        parameters: Some(entry.parameters),
        download_bytes: entry.checkpoint_bytes(),
        figures: inner.catalog.figures(entry).copied(),
        license: entry.license.clone(),
        access: entry.access,
        notes: entry.notes.clone(),
        source: entry.source.describe(),
        installed: Vec::new(),
        auto_pull: entry.pinned_bytes().is_some_and(|bytes| bytes <= inner.config.auto_pull_limit),
    }
}

fn from_manifest(manifest: &Manifest) -> ModelListing {
    ModelListing {
        name: manifest.name.clone(),
        kind: ModelKind::of(manifest),
        title: manifest.name.to_string(),
        parameters: None,
        download_bytes: None,
        figures: None,
        license: manifest.provenance.license.clone(),
        access: Access::Open,
        notes: None,
        source: manifest.provenance.source.clone(),
        installed: Vec::new(),
        auto_pull: false,
    }
}
