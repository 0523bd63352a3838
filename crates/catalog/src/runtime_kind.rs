//! Names of runtimes.

use std::fmt;

use narthex_spec::{Ep, UnknownName};
use serde::{Deserialize, Serialize};

/// A runtime: the libraries of a provider, or a compiler that runs no models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum RuntimeKind {
    /// The libraries of a provider.
    Provider(Ep),
    /// Intel's compiler for NPUs.
    OpenVinoCompiler,
}

impl RuntimeKind {
    /// Returns the name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provider(ep) => ep.as_str(),
            Self::OpenVinoCompiler => "openvino-compiler",
        }
    }

    /// Returns the provider in the runtime.
    pub fn ep(self) -> Option<Ep> {
        match self {
            Self::Provider(ep) => Some(ep),
            Self::OpenVinoCompiler => None,
        }
    }
}

impl From<Ep> for RuntimeKind {
    fn from(ep: Ep) -> Self {
        Self::Provider(ep)
    }
}

impl From<RuntimeKind> for &'static str {
    fn from(kind: RuntimeKind) -> Self {
        kind.as_str()
    }
}

impl TryFrom<String> for RuntimeKind {
    type Error = UnknownName;

    fn try_from(name: String) -> Result<Self, UnknownName> {
        let mut kinds: Vec<Self> = Ep::ALL.map(Self::Provider).into();
        kinds.push(Self::OpenVinoCompiler);
        UnknownName::find("runtime", &name, &kinds)
    }
}

impl fmt::Display for RuntimeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
