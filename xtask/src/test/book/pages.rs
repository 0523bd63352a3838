//! Pages that are checked: the README and the pages of the book.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use xtask_tools::workspace::relative;

/// A page in Markdown.
pub(super) struct Page {
    /// Path relative to the root.
    pub(super) path: String,
    pub(super) text: String,
}

impl Page {
    /// Reads every page, in order of path.
    pub(super) fn read_all(root: &Path) -> anyhow::Result<Vec<Self>> {
        let mut files = vec![root.join("README.md")];
        collect(&root.join("docs/src"), &mut files)?;
        files.sort();
        let read = |path: PathBuf| {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            Ok(Self { path: relative(&path, root), text })
        };
        files.into_iter().map(read).collect()
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    Ok(())
}
