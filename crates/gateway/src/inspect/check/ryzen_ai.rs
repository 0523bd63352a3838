//! Verdict on a model for AMD's NPUs. There are no rules for the operators of AMD's compiler, which compiles when a model
//! is loaded, so the verdict follows from the kind of the model.

use std::{fmt, str::FromStr};

use narthex_spec::{Ep, Target, arch::Structure, manifest::Manifest, target::UnknownTarget};
use serde::Serialize;

use crate::{
    cancel::Cancel,
    error::Error,
    gateway::Gateway,
    library::model_ref::{self, ResolvedModel},
};

/// NPU of a check or a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NpuTarget {
    /// An NPU with rules.
    WithRules(Target),
    /// AMD's NPUs.
    RyzenAi,
}

impl NpuTarget {
    /// Returns an NPU that has rules.
    pub fn with_rules(&self) -> Option<&Target> {
        match self {
            Self::WithRules(target) => Some(target),
            Self::RyzenAi => None,
        }
    }
}

impl FromStr for NpuTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "ryzen-ai" | "vitisai" | "vitisai:npu" => Ok(Self::RyzenAi),
            _ => text
                .parse()
                .map(Self::WithRules)
                .map_err(|error: UnknownTarget| format!("{error}, or ryzen-ai")),
        }
    }
}

/// Verdict on a model for Ryzen AI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RyzenAiVerdict {
    /// AMD's tools have compiled the model for this NPU.
    CompiledByAmd,
    /// The package is bound to another vendor's NPU.
    OtherDevice,
    /// The NPU runs only chat models that AMD's tools have compiled, and this is another one.
    Refused,
    /// AMD's compiler decides when the model is loaded.
    Unknown,
}

impl RyzenAiVerdict {
    /// Returns the verdict on a chat model that Narthex compiles, or on another kind of model.
    pub(crate) fn of_compiled(is_decoder: bool) -> Self {
        if is_decoder { Self::Refused } else { Self::Unknown }
    }

    fn of_package(manifest: &Manifest) -> Self {
        match &manifest.bound {
            Some(bound) if bound.ep == Ep::VitisAi => Self::CompiledByAmd,
            Some(_) => Self::OtherDevice,
            None => Self::of_compiled(manifest.architecture.is_decoder()),
        }
    }

    /// Returns the next step, if there is one.
    pub fn fix(self) -> Option<&'static str> {
        match self {
            Self::CompiledByAmd => Some("narthex chat -m NAME --providers vitisai runs it"),
            Self::Refused => Some(
                "`narthex export MODEL DIR --format quark` prepares a checkpoint for AMD's model_generate, whose result \
                 `narthex import` reads",
            ),
            Self::Unknown => {
                Some("on a machine with the NPU, import the model and load it with --providers vitisai")
            }
            Self::OtherDevice => None,
        }
    }
}

impl fmt::Display for RyzenAiVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CompiledByAmd => "compiled by AMD's tools; nobody has run such a model with Narthex",
            Self::OtherDevice => "refused: the package runs only on the device that it was compiled for",
            Self::Refused => "refused: AMD's NPU runs only chat models that AMD's tools have compiled",
            Self::Unknown => {
                "unknown: there are no rules for AMD's compiler, and nobody has run such a model with Narthex"
            }
        })
    }
}

/// Report on a model for Ryzen AI.
#[derive(Debug, Clone, Serialize)]
pub struct RyzenAiReport {
    /// Path or name of the model.
    pub subject: String,
    /// `ryzen-ai`.
    pub target: &'static str,
    /// Verdict.
    pub verdict: RyzenAiVerdict,
    /// The verdict in words.
    pub text: String,
    /// The next step, if there is one.
    pub fix: Option<&'static str>,
}

impl RyzenAiReport {
    /// Error text for dimensions and fixes.
    pub const NO_RULES: &'static str = "expected a model alone: there are no rules for the operators of AMD's compiler, so \
                                        dimensions and fixes have no effect";
}

impl fmt::Display for RyzenAiReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}: {}", self.subject, self.target, self.text)
    }
}

impl Gateway {
    /// Returns the verdict on a model for AMD's NPUs.
    ///
    /// # Errors
    /// As [`Gateway::check`].
    pub fn check_ryzen_ai(&self, subject: &str, cancel: &Cancel) -> Result<RyzenAiReport, Error> {
        let verdict = match model_ref::find(self.library(), subject, cancel)? {
            ResolvedModel::Package(manifest, _) => RyzenAiVerdict::of_package(&manifest),
            ResolvedModel::Checkpoint(found) => {
                RyzenAiVerdict::of_compiled(Structure::from(found.architecture).is_decoder())
            }
            ResolvedModel::Graphs(_) => RyzenAiVerdict::Unknown,
            ResolvedModel::Unsupported(error) => return Err(*error),
        };
        Ok(RyzenAiReport {
            subject: subject.to_owned(),
            target: "ryzen-ai",
            verdict,
            text: verdict.to_string(),
            fix: verdict.fix(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_has_targets_with_rules_and_ryzen_ai() {
        let target = |text: &str| text.parse::<NpuTarget>();
        assert_eq!(target("Ryzen-AI"), Ok(NpuTarget::RyzenAi));
        assert_eq!(target("openvino:npu"), Ok(NpuTarget::WithRules("openvino:npu".parse().unwrap())));
        assert!(target("toaster").unwrap_err().ends_with(", or ryzen-ai"));
    }
}
