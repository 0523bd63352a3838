//! Contexts, the compiled forms of graphs that providers write and read.

use std::path::Path;

/// Use of a context, the provider's compiled form of a graph.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Context<'a> {
    /// The context is compiled for this session only, or loaded with a binary of its own.
    Own,
    /// The context is loaded, and other sessions use graphs in the same binary.
    Shared,
    /// The context is compiled and written to files.
    Written {
        /// The ONNX file of the context; the binary is next to it.
        path: &'a Path,
        /// Sharing of the binary.
        sharing: SharedWeights,
    },
}

/// Sharing of the weights in one binary by several graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedWeights {
    /// The graph has a binary of its own.
    None,
    /// The graph shares a binary, and more graphs follow.
    MoreFollow,
    /// The graph is the last of those that share a binary.
    Last,
}

impl Context<'_> {
    /// Returns the session settings, by ONNX Runtime's names.
    pub(super) fn entries(self) -> Vec<(&'static str, String)> {
        const SHARE: &str = "ep.share_ep_contexts";
        let (path, sharing) = match self {
            Self::Own => return Vec::new(),
            // Otherwise each session would load the whole binary.
            Self::Shared => return vec![(SHARE, "1".to_owned())],
            Self::Written { path, sharing } => (path, sharing),
        };
        let mut entries = vec![
            ("ep.context_enable", "1".to_owned()),
            ("ep.context_embed_mode", "0".to_owned()),
            ("ep.context_file_path", path.to_string_lossy().into_owned()),
        ];
        if sharing != SharedWeights::None {
            entries.push((SHARE, "1".to_owned()));
        }
        if sharing == SharedWeights::Last {
            entries.push(("ep.stop_share_ep_contexts", "1".to_owned()));
        }
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_a_binary_on_request() {
        let check = |context: Context<'_>, expected: &[&str]| {
            let entries = context.entries();
            let keys: Vec<&str> = entries.iter().map(|(key, _)| *key).collect();
            assert_eq!(keys, expected, "{context:?}");
        };
        let made = ["ep.context_enable", "ep.context_embed_mode", "ep.context_file_path"];
        let (share, stop) = ("ep.share_ep_contexts", "ep.stop_share_ep_contexts");
        let written = |sharing| Context::Written { path: Path::new("g.onnx"), sharing };
        check(Context::Own, &[]);
        check(Context::Shared, &[share]);
        check(written(SharedWeights::None), &made);
        check(written(SharedWeights::MoreFollow), &[&made[..], &[share]].concat());
        check(written(SharedWeights::Last), &[&made[..], &[share, stop]].concat());
    }
}
