//! `narthex export`: a package as a folder that other runtimes load.

use std::path::Path;

use narthex_compile::export::{self, ExportJob};

use crate::{error::Error, gateway::Gateway, shelf};

/// What a package is exported as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// A folder for onnxruntime-genai.
    Genai,
}

impl Gateway {
    /// Writes an installed package into a folder that is not there yet, or is empty.
    ///
    /// # Errors
    /// [`Error::NotInstalled`]; [`Error::Compile`] for what the format has no place for.
    pub fn export(&self, model: &str, format: ExportFormat, out: &Path) -> Result<(), Error> {
        let key = shelf::installed_key(self.inner(), model)?;
        let manifest = shelf::manifest(self.inner(), &key)?;
        let package = self.inner().store.package(&key.name, key.scheme);
        let package = package.ok_or_else(|| Error::NotInstalled { name: key.name.clone() })?;
        let job = ExportJob { package: &package, manifest: &manifest, out };
        match format {
            ExportFormat::Genai => Ok(export::genai(&job)?),
        }
    }
}
