//! Runtime libraries, as the command line installs and lists them.

use std::path::PathBuf;

use narthex_catalog::{
    runtimes::{self, RuntimeInfo},
    source::wheel::WheelOrigin,
};
use narthex_spec::{Ep, ProgressSink};
use serde::Serialize;

use crate::{cancel::Cancel, error::Error, gateway::Gateway};

/// A runtime that this version knows.
#[derive(Debug, Clone, Serialize)]
pub struct RuntimeListing {
    /// Its name: `cpu`, `qnn`, ….
    pub kind: String,
    /// The pinned version.
    pub version: String,
    /// Where it is installed.
    pub installed: Option<PathBuf>,
    /// Why it cannot be installed here.
    pub refusal: Option<String>,
}

impl Gateway {
    /// Every runtime that this version knows.
    pub fn runtimes(&self) -> Vec<RuntimeListing> {
        runtimes::all()
            .map(|package| RuntimeListing {
                kind: package.ep.to_string(),
                version: package.version.to_owned(),
                installed: runtimes::locate(&self.inner().store, package.ep).map(|info| info.dir),
                refusal: runtimes::pinned(package.ep).err().map(|error| error.to_string()),
            })
            .collect()
    }

    /// Installs a runtime through pip, or from a wheel on disk.
    pub fn install_runtime(
        &self,
        kind: &str,
        origin: &WheelOrigin,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<RuntimeInfo, Error> {
        Ok(runtimes::install(&self.inner().store, parse(kind)?, origin, progress, cancel.flag())?)
    }

    /// Removes a runtime.
    pub fn remove_runtime(&self, kind: &str) -> Result<(), Error> {
        Ok(runtimes::remove(&self.inner().store, parse(kind)?)?)
    }
}

fn parse(kind: &str) -> Result<Ep, Error> {
    runtimes::parse(kind).map_err(|error| Error::Invalid { param: "runtime", message: error.to_string() })
}
