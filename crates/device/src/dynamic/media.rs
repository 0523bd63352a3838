//! Attention among the rows of a medium.

use narthex_engine::executor::Limits;
use narthex_spec::{arch::Structure, manifest::Manifest};

use super::parts::LoadedGraph;
use crate::operators::AttentionSwitch;

/// Attention among the rows of a medium.
pub(super) enum MediaAttention {
    /// As among tokens.
    Causal,
    /// In both directions. The switch is on while the rows of one medium run.
    Bidirectional(AttentionSwitch),
    /// In both directions, which this device does not compute, so that it takes no media.
    Unsupported,
}

/// Returns the attention among the rows of a medium in a package's model.
pub(super) fn media_attention(
    manifest: &Manifest,
    limits: &Limits,
    graph: &LoadedGraph,
    prompt: Option<&LoadedGraph>,
) -> MediaAttention {
    let vision = match &manifest.architecture {
        Structure::Decoder(arch) => arch.vision.as_deref(),
        _ => None,
    };
    match (vision.filter(|vision| vision.is_bidirectional()), graph.session.bidirectional()) {
        (None, _) => MediaAttention::Causal,
        // All rows of a medium run in one step.
        (Some(vision), Some(switch)) if prompt.is_none() && vision.rows() <= limits.chunk => {
            MediaAttention::Bidirectional(switch.clone())
        }
        _ => MediaAttention::Unsupported,
    }
}
