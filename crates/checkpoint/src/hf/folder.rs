//! A checkpoint's folder: reads small files and records which ones it read.
//!
//! Other modules interpret the files; only the licence line of a model card is parsed here.

use std::{
    io::Read,
    path::{Component, Path, PathBuf},
};

use narthex_files::open_regular;
use serde::de::DeserializeOwned;

use crate::{
    error::Result,
    limits::{
        MAX_CONFIG_BYTES, MAX_CONFIG_VALUES, MAX_TEXT_BYTES, check_values, malformed, read_at_most,
        unreadable,
    },
};

/// Number of bytes of a model card that are searched for its licence. The front matter is at the beginning.
const CARD_BYTES: u64 = 64 << 10;

/// A folder and the files read from it.
pub struct Folder {
    path: PathBuf,
    /// Files read so far.
    pub files: Vec<PathBuf>,
}

impl Folder {
    /// Returns a folder without reading a file.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), files: Vec::new() }
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of `name` in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns whether the folder has a file `name`.
    pub fn has(&self, name: &str) -> bool {
        self.file(name).is_file()
    }

    /// Returns the bytes of `name`, or `None` if there is no such file.
    pub fn bytes(&mut self, name: &str) -> Result<Option<Vec<u8>>> {
        self.at_most(name, MAX_TEXT_BYTES)
    }

    fn at_most(&mut self, name: &str, most: u64) -> Result<Option<Vec<u8>>> {
        if !self.has(name) {
            return Ok(None);
        }
        let path = self.file(name);
        let bytes = read_at_most(&path, most)?;
        if !self.files.contains(&path) {
            self.files.push(path);
        }
        Ok(Some(bytes))
    }

    /// Returns the text of `name`, or `None` if there is no such file.
    pub fn text(&mut self, name: &str) -> Result<Option<String>> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(malformed(&self.file(name), "text in UTF-8", error)),
        }
    }

    /// Parses the file `name` as JSON. Returns `None` if the file does not exist. `expected` is the description of its
    /// content in errors. A file of more than [`MAX_CONFIG_BYTES`] or [`MAX_CONFIG_VALUES`] is malformed.
    pub fn json<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Result<Option<T>> {
        let Some(bytes) = self.at_most(name, MAX_CONFIG_BYTES)? else { return Ok(None) };
        check_values(&self.file(name), &bytes, MAX_CONFIG_VALUES)?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(malformed(&self.file(name), expected, error)),
        }
    }

    /// Returns the licence in the front matter of the model card.
    pub fn license(&self) -> Result<Option<String>> {
        let path = self.file("README.md");
        let Ok(file) = open_regular(&path) else { return Ok(None) };
        let mut card = Vec::new();
        file.take(CARD_BYTES).read_to_end(&mut card).map_err(unreadable(&path))?;
        Ok(license_of(&String::from_utf8_lossy(&card)))
    }
}

/// Returns whether the relative path `name` stays inside the folder that contains it.
pub fn inside(name: &str) -> bool {
    Path::new(name).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

fn license_of(card: &str) -> Option<String> {
    let front = card.strip_prefix("---")?.split("\n---").next()?;
    let value = front.lines().find_map(|line| line.strip_prefix("license:"))?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_licence_is_read_from_the_front_matter_alone() {
        let check = |card: &str, expect: Option<&str>| assert_eq!(license_of(card).as_deref(), expect);
        check("---\nlanguage: en\nlicense: apache-2.0\n---\n# Card", Some("apache-2.0"));
        check("---\nlicense: \"mit\"\n---\n", Some("mit"));
        check("---\nlicense:\n---\n", None);
        check("---\nlanguage: en\n---\nlicense: mit\n", None);
        check("# Card\nlicense: mit\n", None);
    }

    #[test]
    fn paths_outside_the_folder_are_refused() {
        for (name, expect) in [
            ("", true),
            ("1_Pooling", true),
            ("a/b", true),
            ("../a", false),
            ("/etc", false),
            ("a/../../b", false),
        ] {
            assert_eq!(inside(name), expect, "{name}");
        }
    }

    #[test]
    fn files_are_remembered_once() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.json"), "[1, 2]").unwrap();
        std::fs::write(folder.path().join("b.json"), "[1,").unwrap();
        let mut folder = Folder::new(folder.path());
        assert_eq!(folder.json::<Vec<u8>>("a.json", "numbers").unwrap(), Some(vec![1, 2]));
        assert_eq!(folder.text("a.json").unwrap().as_deref(), Some("[1, 2]"));
        assert_eq!(folder.json::<Vec<u8>>("c.json", "numbers").unwrap(), None);
        let error = folder.json::<Vec<u8>>("b.json", "numbers").unwrap_err().to_string();
        assert!(error.contains("b.json is malformed: expected numbers, found EOF"), "{error}");
        assert_eq!(folder.files.len(), 2);
    }

    #[test]
    fn json_is_limited_before_it_is_parsed() {
        let folder = tempfile::tempdir().unwrap();
        let spaces = |bytes: u64| format!("[0{}]", " ".repeat(bytes as usize - 3));
        std::fs::write(folder.path().join("a.json"), spaces(MAX_CONFIG_BYTES)).unwrap();
        std::fs::write(folder.path().join("b.json"), spaces(MAX_CONFIG_BYTES + 1)).unwrap();
        let mut folder = Folder::new(folder.path());
        assert!(folder.json::<Vec<u8>>("a.json", "numbers").unwrap().is_some());
        let error = folder.json::<Vec<u8>>("b.json", "numbers").unwrap_err().to_string();
        assert!(error.contains("b.json is malformed: expected at most 4194304 bytes"), "{error}");
        assert!(folder.bytes("b.json").unwrap().is_some());
        let zeros = |values: usize| format!("[{}0]", "0,".repeat(values - 1));
        std::fs::write(folder.file("c.json"), zeros(MAX_CONFIG_VALUES)).unwrap();
        std::fs::write(folder.file("d.json"), zeros(MAX_CONFIG_VALUES + 1)).unwrap();
        assert!(folder.json::<Vec<u8>>("c.json", "numbers").unwrap().is_some());
        let error = folder.json::<Vec<u8>>("d.json", "numbers").unwrap_err().to_string();
        assert!(error.contains("expected at most 262144 values, found 262145"), "{error}");
    }
}
