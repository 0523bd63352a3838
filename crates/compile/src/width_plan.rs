//! Plans of widths: text files that state which linear layers of a package of 4 bits have 8. A compile writes one, people
//! edit it, and another compile reads it.
//!
//! ```toml
//! [layers]
//! "/layers.0/attn/qkv_proj" = 8 # loses 3.1 % in 4 bits
//! "/layers.0/attn/o_proj" = 4
//! ```

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use narthex_spec::{
    Sha256,
    manifest::{LayerWidth, Manifest},
};
use serde::Deserialize;
use toml::Spanned;

/// Maximum size of a file, in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// Widths of linear layers, read from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WidthPlan {
    path: PathBuf,
    sha256: Sha256,
    widths: BTreeMap<String, PlannedWidth>,
}

/// Width of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlannedWidth {
    bits: u8,
    /// Line of the file, counted from 1.
    line: usize,
}

/// Reason why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WidthPlanError {
    /// The file cannot be read, or is not UTF-8 text of a few megabytes.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a plan of widths.
    #[error("{path}, line {line}: {reason}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line of the file, counted from 1.
        line: usize,
        /// The expected and the found value.
        reason: String,
    },
}

/// The file's structure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    layers: BTreeMap<Spanned<String>, Spanned<toml::Value>>,
}

impl WidthPlan {
    /// Reads a file.
    ///
    /// # Errors
    /// [`WidthPlanError`].
    pub fn read(path: &Path) -> Result<Self, WidthPlanError> {
        let text = narthex_files::read(path, MAX_BYTES).and_then(narthex_files::user_text);
        let text = text.map_err(|source| WidthPlanError::Read { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    /// Reads the text of the file `path`.
    fn parse(path: &Path, text: &str) -> Result<Self, WidthPlanError> {
        let error = |line, reason| WidthPlanError::Line { path: path.to_owned(), line, reason };
        let document: Document = toml::from_str(text)
            .map_err(|found| error(line_of(text, found.span()), found.message().to_owned()))?;

        let mut widths = BTreeMap::new();
        for (layer, value) in document.layers {
            let line = line_of(text, Some(value.span()));
            let bits = match value.get_ref().as_integer() {
                Some(4) => 4,
                Some(8) => 8,
                _ => {
                    let layer = layer.get_ref();
                    return Err(error(
                        line,
                        format!("{layer}: expected 4 or 8 bits, found {}", value.get_ref()),
                    ));
                }
            };
            widths.insert(layer.into_inner(), PlannedWidth { bits, line });
        }
        Ok(Self { path: path.to_owned(), sha256: Sha256::of(text.as_bytes()), widths })
    }

    /// Returns the digest of the file.
    pub fn sha256(&self) -> Sha256 {
        self.sha256
    }

    /// Returns `true` if a layer has 8 bits. Layers that the file does not name have 4.
    pub fn is_wide(&self, layer: &str) -> bool {
        self.widths.get(layer).is_some_and(|width| width.bits == 8)
    }

    /// Checks that the file names no other layers than these.
    ///
    /// # Errors
    /// [`WidthPlanError::Line`] for the first other layer.
    pub(crate) fn check(&self, layers: &[&str]) -> Result<(), WidthPlanError> {
        let unknown = self.widths.iter().filter(|(layer, _)| !layers.contains(&layer.as_str()));
        let Some((layer, width)) = unknown.min_by_key(|(_, width)| width.line) else { return Ok(()) };
        let expected = match (layers.first(), layers.last()) {
            (Some(first), Some(last)) => format!("a layer of the model, from {first} to {last}"),
            _ => "no layers, as the model has none whose weights are rounded to 4 bits".to_owned(),
        };
        let reason = format!("expected {expected}; found {layer:?}");
        Err(WidthPlanError::Line { path: self.path.clone(), line: width.line, reason })
    }
}

/// Returns the file that states the widths of the layers of a package.
pub fn text(manifest: &Manifest) -> String {
    let mut text = format!(
        "# Bits of the linear layers of {} in {}: 4 or 8. Layers that are not named have 4.\n[layers]\n",
        manifest.name, manifest.recipe.scheme
    );
    for LayerWidth { path, bits, loss } in &manifest.layer_widths {
        let loss = loss.map_or_else(String::new, |loss| format!(" # loses {:.2} % in 4 bits", loss * 100.0));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{path:?} = {bits}{loss}");
    }
    text
}

/// Returns the line of a part of a text, counted from 1.
fn line_of(text: &str, span: Option<Range<usize>>) -> usize {
    let start = span.map_or(0, |span| span.start).min(text.len());
    text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<WidthPlan, WidthPlanError> {
        WidthPlan::parse(Path::new("plan.toml"), text)
    }

    #[test]
    fn widths_are_read_with_comments() {
        let text =
            "# mine\n[layers]\n\"/layers.0/mlp/up_proj\" = 8 # loses 3 %\n\"/layers.1/mlp/up_proj\" = 4\n";
        let plan = parse(text).unwrap();
        assert!(plan.is_wide("/layers.0/mlp/up_proj"));
        assert!(!plan.is_wide("/layers.1/mlp/up_proj") && !plan.is_wide("/layers.2/mlp/up_proj"));
        assert_eq!(plan.sha256(), Sha256::of(text.as_bytes()));
        plan.check(&["/layers.0/mlp/up_proj", "/layers.1/mlp/up_proj"]).unwrap();
    }

    #[test]
    fn faults_are_named_with_line_and_layer() {
        let check = |text: &str, expected: &str| {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        check("[layers]\n\n\"/a\" = 5\n", "plan.toml, line 3: /a: expected 4 or 8 bits, found 5");
        check("[layers]\n\"/a\" = \"8\"\n", "plan.toml, line 2: /a: expected 4 or 8 bits, found \"8\"");
        check("[layers]\n\"/a\" = 4\n\"/a\" = 8\n", "plan.toml, line 3: duplicate key");
        check("[layers]\n\"/a\" 4\n", "plan.toml, line 2: ");
        check("[layer]\n\"/a\" = 4\n", "plan.toml, line 1: unknown field `layer`");
        check("", "plan.toml, line 1: missing field `layers`");

        let plan = parse("[layers]\n\"/c\" = 8\n\"/b\" = 4\n").unwrap();
        let error = |layers: &[&str]| plan.check(layers).unwrap_err().to_string();
        assert_eq!(
            error(&["/a", "/b", "/d"]),
            "plan.toml, line 2: expected a layer of the model, from /a to /d; found \"/c\""
        );
        assert!(error(&[]).contains("line 2: expected no layers"));
    }

    #[test]
    fn files_that_are_no_text_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.toml");
        let error = WidthPlan::read(&path).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.contains("plan.toml"), "{error}");
        std::fs::write(&path, [0x5b, 0x80]).unwrap();
        assert!(matches!(WidthPlan::read(&path), Err(WidthPlanError::Read { .. })));
    }
}
