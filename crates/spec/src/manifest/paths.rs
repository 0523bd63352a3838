//! Paths of a package's files in a manifest: relative, with `/`, inside the package.
//!
//! Every path of a manifest is checked by [`check_path`] when the manifest is read, so other code never sees a path
//! outside the package. Symbolic links are checked when a file is opened.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::Error as _};

use super::{FileEntry, check_files};

/// Maximum length of a path in bytes.
const MAX_BYTES: usize = 1000;

/// A path that is not valid for a file of a package.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{path:?} is not the path of a package's file: expected names joined with /, such as graphs/model.onnx"
)]
pub struct BadPath {
    /// The path, shortened.
    pub path: String,
}

/// Fails unless `path` is relative and inside the package on every platform. Empty, `.` and `..` components,
/// backslashes, colons and control characters are refused.
pub fn check_path(path: &str) -> Result<(), BadPath> {
    let is_plain = !path.contains(['\\', ':']) && !path.contains(char::is_control);
    if path.len() <= MAX_BYTES
        && is_plain
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
    {
        return Ok(());
    }
    Err(BadPath { path: path.chars().take(80).collect() })
}

pub(super) fn path<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let path = String::deserialize(from)?;
    check_path(&path).map_err(D::Error::custom)?;
    Ok(path)
}

/// Deserializes an optional path.
pub(super) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let path = Option::<String>::deserialize(from)?;
    path.iter().try_for_each(|path| check_path(path)).map_err(D::Error::custom)?;
    Ok(path)
}

/// Deserializes the files of a package by path.
pub(super) fn files<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, FileEntry>, D::Error> {
    let files = BTreeMap::<String, FileEntry>::deserialize(from)?;
    check_files(&files).map_err(D::Error::custom)?;
    files.keys().try_for_each(|path| check_path(path)).map_err(D::Error::custom)?;
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{ChatEntry, GraphEntry, TableEncoding};

    #[test]
    fn paths_lead_to_files_inside_the_package() {
        for good in ["model.onnx", "graphs/model.onnx", "a.b/c-d_e", "..a/b", "naïve"] {
            check_path(good).unwrap();
        }
        let long = "x".repeat(MAX_BYTES + 1);
        let bad = [
            "",
            "/etc/passwd",
            "../a",
            "a/../../b",
            "a/..",
            "./a",
            "a//b",
            "a/",
            "a\\b",
            "c:a",
            "a\0b",
            &long,
        ];
        for bad in bad {
            check_path(bad).unwrap_err();
        }
    }

    #[test]
    fn a_manifest_with_such_a_path_is_not_read() {
        let chat = |path: &str| {
            let text = format!(r#"{{"template": {path:?}, "special_tokens": {{}}}}"#);
            serde_json::from_str::<ChatEntry>(&text)
        };
        assert_eq!(chat("chat_template.jinja").unwrap().template, "chat_template.jinja");
        let error = chat("/etc/passwd").unwrap_err().to_string();
        assert!(error.contains("\"/etc/passwd\" is not the path of a package's file"), "{error}");
        let table =
            r#"{"type": "plain", "dtype": "f32", "data": {"file": "../x", "offset": 0, "length": 4}}"#;
        assert!(serde_json::from_str::<TableEncoding>(table).unwrap_err().to_string().contains("\"../x\""));
        let graph = r#"{"file": "a/../b", "variant": "dynamic", "inputs": [], "outputs": [], "kv": []}"#;
        assert!(serde_json::from_str::<GraphEntry>(graph).unwrap_err().to_string().contains("\"a/../b\""));
    }
}
