//! The command that writes a model with Narthex's own fixes, to be copied into a shell.

use std::{borrow::Cow, path::Path};

use narthex_graph::onnx::files::OnnxFile;

use super::{CheckOptions, dim_bindings::DimBindings, symbols};

/// Extent in the command of a dimension that is neither set nor usual. The user replaces it.
const UNKNOWN_EXTENT: &str = "N";

/// Returns the command for the model `subject`. It states the extent of every symbolic dimension.
pub(super) fn fix_command(subject: &str, parts: &[OnnxFile], options: &CheckOptions) -> String {
    let extents = DimBindings::new(&options.extents);
    let stem = Path::new(subject).file_stem().unwrap_or_default().to_string_lossy();
    let folder = if stem.is_empty() { "fixed".to_owned() } else { format!("{stem}-fixed") };
    let mut command = format!("narthex check {} --target {}", quoted(subject), options.target);
    for symbol in symbols(parts) {
        let extent = extents.get(&symbol).map_or(UNKNOWN_EXTENT.to_owned(), |extent| extent.to_string());
        command.push_str(&format!(" --set {}", quoted(&format!("{symbol}={extent}"))));
    }
    command.push_str(&format!(" --fix {}", quoted(&folder)));
    command
}

/// Returns a word as a shell reads it, without control characters, which a terminal would execute.
fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=\\".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return Cow::Borrowed(word);
    }
    // Shells of Windows know only double quotes, and no shell replaces anything inside single ones.
    let word = word.replace(char::is_control, "\u{fffd}");
    if cfg!(windows) {
        format!("\"{word}\"").into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''")).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_are_quoted() {
        assert_eq!(quoted("models/a-b.onnx"), "models/a-b.onnx");
        if cfg!(unix) {
            assert_eq!(quoted("my model.onnx"), "'my model.onnx'");
            assert_eq!(quoted("it's"), r"'it'\''s'");
            assert_eq!(quoted("a\x1b[2J"), "'a\u{fffd}[2J'");
            assert_eq!(quoted(""), "''");
        }
    }
}
