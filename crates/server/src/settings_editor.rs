//! Changes of a server's settings by requests: additional names of models, pins and the default model. The program that
//! runs the server stores them.

use std::{fmt, sync::Arc};

use narthex_gateway::{AnswerSettings, Gateway};

/// A change of the settings. Models have the names of their listings.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingsChange {
    /// A model gets an additional name.
    AddName {
        /// The new name.
        name: String,
        /// The model.
        model: String,
    },
    /// A custom model answers with another model. One of the same name is replaced.
    AddModel {
        /// The new name.
        name: String,
        /// Model that answers, with or without a scheme.
        from: String,
        /// System prompt and sampling.
        answers: AnswerSettings,
    },
    /// An additional name or a custom model is removed. The model that answered stays.
    RemoveName {
        /// The name.
        name: String,
    },
    /// A model may or may not be unloaded to make room for another.
    Pin {
        /// The model.
        model: String,
        /// True if it may not be unloaded.
        pinned: bool,
    },
    /// The program reads its settings again.
    Reload,
    /// Another model, or none, answers requests that name an unknown one.
    DefaultModel {
        /// The model.
        model: Option<String>,
    },
}

/// Settings after a change.
#[derive(Clone)]
pub struct AppliedSettings {
    /// Gateway with the settings.
    pub gateway: Gateway,
    /// Remarks for the operator, such as settings that apply after a restart.
    pub notes: Vec<String>,
}

impl From<Gateway> for AppliedSettings {
    fn from(gateway: Gateway) -> Self {
        Self { gateway, notes: Vec::new() }
    }
}

type Apply = dyn Fn(&SettingsChange) -> Result<AppliedSettings, String> + Send + Sync;

/// Stores changes of the settings and applies them. Clones share the settings.
///
/// ```
/// use narthex_server::{ServeOptions, SettingsEditor};
///
/// let settings = SettingsEditor::new(|_| Err("this program has no settings file".to_owned()));
/// let options = ServeOptions { settings: Some(settings), ..ServeOptions::local(8000) };
/// assert!(options.settings.is_some());
/// ```
#[derive(Clone)]
pub struct SettingsEditor(Arc<Apply>);

impl SettingsEditor {
    /// Creates an editor from a function that stores a change and returns the settings with it, or the reason why they stay as
    /// they are.
    pub fn new(
        apply: impl Fn(&SettingsChange) -> Result<AppliedSettings, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(apply))
    }

    pub(crate) fn apply(&self, change: &SettingsChange) -> Result<AppliedSettings, String> {
        (self.0)(change)
    }
}

impl fmt::Debug for SettingsEditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SettingsEditor")
    }
}
