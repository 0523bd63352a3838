//! Helpers for the tests of whole compiles.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::path::Path;

use narthex_compile::pipeline::CompileJob;
use narthex_spec::{Recipe, manifest::Provenance};

/// Returns a compile job without calibration for a checkpoint without provenance.
pub(crate) fn job<'a>(checkpoint: &'a Path, recipe: Recipe, out: &'a Path) -> CompileJob<'a> {
    CompileJob {
        checkpoint,
        name: "tiny".parse().unwrap(),
        recipe,
        runner: None,
        text: None,
        vocabulary: None,
        widths: None,
        measured_bytes: 0,
        out,
        adapters: &[],
        pooling: None,
        rerank: false,
        keep_stages: None,
        provenance: Provenance {
            source: "a test".to_owned(),
            checkpoint: [].into(),
            license: None,
            compiler: "narthex test".to_owned(),
        },
    }
}
