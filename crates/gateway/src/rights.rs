//! Rights of a caller: models, and the downloads and compiles that its requests may start.

use std::collections::BTreeSet;

use narthex_spec::ModelName;
use serde::Serialize;
use strum::{Display, EnumString};

use crate::error::Error;

/// Downloads and compiles that a request may start. Loading an installed model is always allowed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Display, EnumString)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum AutoPull {
    /// None.
    Never,
    /// Those of catalogue models whose files are pinned and have at most
    /// [`Config::auto_pull_limit`](crate::Config::auto_pull_limit) bytes.
    #[default]
    Catalogue,
    /// Those of every model of the catalogue and the hub.
    Always,
}

/// Rights of a caller. By default, a caller may use every model, and its requests may download small catalogue models
/// whose files are pinned.
///
/// ```
/// use narthex_gateway::{AutoPull, Rights};
///
/// let rights = Rights { models: ["smollm2:135m".parse()?].into(), auto_pull: AutoPull::Never };
/// assert!(rights.allows(&"smollm2:135m".parse()?) && !rights.allows(&"gpt2".parse()?));
/// # Ok::<(), narthex_spec::id::BadModelName>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// Models that the caller may use; all if it is empty.
    pub models: BTreeSet<ModelName>,
    /// Downloads and compiles that its requests may start.
    pub auto_pull: AutoPull,
}

impl Rights {
    /// Returns whether the caller may use a model.
    pub fn allows(&self, name: &ModelName) -> bool {
        self.models.is_empty() || self.models.contains(name)
    }

    /// Refuses a model that the caller may not use.
    pub(crate) fn check(&self, name: &ModelName) -> Result<(), Error> {
        if self.allows(name) { Ok(()) } else { Err(Error::ModelNotAllowed { name: name.clone() }) }
    }
}
