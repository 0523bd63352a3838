//! Links between the pages of a built book.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Pages that mdBook adds to the book.
const OWN_PAGES: [&str; 3] = ["print.html", "toc.html", "404.html"];

/// Returns a line for every broken link of the book.
pub(super) fn broken(book: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    collect(book, &mut pages)?;
    Ok(broken_between(&pages, |path| path.exists()))
}

/// Reads every page below a folder.
fn collect(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let is_own = OWN_PAGES.iter().any(|own| path.ends_with(own));
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") && !is_own {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            pages.insert(path, text);
        }
    }
    Ok(())
}

fn broken_between(pages: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let ids: BTreeMap<&PathBuf, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path, values(text, "id").collect())).collect();
    let mut broken = Vec::new();
    for (page, text) in pages {
        for link in values(text, "href").chain(values(text, "src")) {
            if link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => resolve(page, file),
            };
            let reason = match ids.get(&target) {
                Some(ids) if fragment.is_empty() || ids.contains(fragment) => continue,
                Some(_) => "the page has no such heading",
                None if exists(&target) => continue,
                None => "there is no such file",
            };
            broken.push(format!("{}: {link}: {reason}", page.display()));
        }
    }
    broken
}

/// Returns the values of an attribute.
fn values<'a>(text: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let opening = format!(" {attribute}=\"");
    let starts: Vec<usize> = text.match_indices(&opening).map(|(at, found)| at + found.len()).collect();
    starts.into_iter().filter_map(|start| text[start..].split('"').next())
}

/// Returns the target file of a link on a page.
fn resolve(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(path.pop()),
            part => path.push(part),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_pages_headings_and_files_are_followed() {
        let page = |path: &str, text: &str| (PathBuf::from(path), text.to_owned());
        let pages = BTreeMap::from([
            page(
                "b/index.html",
                r##"<h1 id="top">A</h1> <a href="#top"> <a class="x" href="d/c.html#two">"##,
            ),
            page(
                "b/d/c.html",
                r##"<h2 id="two"> <a href="../index.html"> <img src="../logo.svg"> <a href="https://x.org/y">"##,
            ),
        ]);
        let exists = |path: &Path| path == Path::new("b/logo.svg");
        assert_eq!(broken_between(&pages, exists), [""; 0]);
        let mut wrong = pages.clone();
        wrong.extend([page(
            "b/e.html",
            r##"<a href="#no"> <a href="d/c.html#one"> <a href="../index.html">"##,
        )]);
        assert_eq!(
            broken_between(&wrong, exists),
            [
                "b/e.html: #no: the page has no such heading",
                "b/e.html: d/c.html#one: the page has no such heading",
                "b/e.html: ../index.html: there is no such file"
            ]
        );
    }
}
