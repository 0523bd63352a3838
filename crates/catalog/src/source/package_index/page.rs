//! The page of a package on an index: its files with their digests, from JSON or HTML.

use narthex_spec::Sha256;
use serde::Deserialize;

use crate::{archive::is_plain, source::pinned::PinnedWheel};

/// A file on an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexFile {
    /// Name: `p-1-py3-none-any.whl`.
    pub(super) name: String,
    /// Address, which may be relative to that of the page.
    pub(super) url: String,
    /// Digest, if the index states one.
    pub(super) sha256: Option<Sha256>,
}

/// A page in JSON.
#[derive(Deserialize)]
struct JsonPage {
    files: Vec<JsonFile>,
}

#[derive(Deserialize)]
struct JsonFile {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: JsonHashes,
}

#[derive(Default, Deserialize)]
struct JsonHashes {
    sha256: Option<String>,
}

/// Reads a page. One that begins with `{` is JSON, because some mirrors state a wrong type.
///
/// # Errors
/// The reason if it is malformed.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<IndexFile>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("expected UTF-8: {error}"))?;
    if !text.trim_start().starts_with('{') {
        return html(text);
    }
    let page: JsonPage = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let files = page.files.into_iter().map(|file| IndexFile {
        name: file.filename,
        url: file.url,
        sha256: file.hashes.sha256.and_then(|digest| digest.parse().ok()),
    });
    Ok(files.collect())
}

/// Reads the links of a page in HTML. The name of a file is the last segment of its address; its digest is the fragment.
fn html(text: &str) -> Result<Vec<IndexFile>, String> {
    let mut files = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let Some(end) = rest.find('>') else { break };
        let (tag, after) = rest.split_at(end);
        rest = after;
        let Some(address) = link(tag) else { continue };
        let address = unescaped(address);
        let (url, fragment) = address.split_once('#').unwrap_or((&address, ""));
        let sha256 = fragment.split('&').find_map(|field| field.strip_prefix("sha256=")?.parse().ok());
        let name = url.split('?').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        let name = String::from_utf8_lossy(&super::percent_decoded(name)).into_owned();
        files.push(IndexFile { name, url: url.to_owned(), sha256 });
    }
    if files.is_empty() && !text.contains("<html") && !text.contains("<!DOCTYPE") {
        return Err("expected JSON or HTML".to_owned());
    }
    Ok(files)
}

/// Returns the address of a tag `a`.
fn link(tag: &str) -> Option<&str> {
    let attributes = tag.strip_prefix(['a', 'A'])?;
    if !attributes.starts_with(|c: char| c.is_ascii_whitespace()) {
        return None;
    }
    let at = attributes.match_indices("href").find_map(|(at, name)| {
        let before = attributes[..at].chars().next_back()?;
        before.is_ascii_whitespace().then_some(at + name.len())
    })?;
    let value = attributes[at..].trim_start().strip_prefix('=')?.trim_start();
    match value.chars().next()? {
        quote @ ('"' | '\'') => value[1..].split(quote).next(),
        _ => value.split_ascii_whitespace().next(),
    }
}

/// Replaces the character references that occur in addresses.
fn unescaped(text: &str) -> String {
    let mut clean = text.to_owned();
    for (reference, character) in [
        ("&#43;", "+"),
        ("&#x2B;", "+"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    ] {
        clean = clean.replace(reference, character);
    }
    clean
}

/// Returns the name of a package in its normalized form (PEP 503).
pub(super) fn normalized(package: &str) -> String {
    let parts: Vec<&str> = package.split(['-', '_', '.']).filter(|part| !part.is_empty()).collect();
    parts.join("-").to_ascii_lowercase()
}

/// Returns the file with the pinned digest; or else, among files without a digest, one whose name has the package, the
/// version and the platform.
pub(super) fn select(files: Vec<IndexFile>, pinned: &PinnedWheel<'_>) -> Option<IndexFile> {
    let mut files: Vec<IndexFile> = files.into_iter().filter(|file| is_file_name(&file.name)).collect();
    let at = files
        .iter()
        .position(|file| file.sha256 == Some(pinned.sha256))
        .or_else(|| files.iter().position(|file| file.sha256.is_none() && is_named_as(&file.name, pinned)))?;
    Some(files.swap_remove(at))
}

fn is_file_name(name: &str) -> bool {
    name.len() <= 255 && is_plain(name) && !name.contains('/')
}

/// Returns true if a file `name-version[-build]-python-abi-platform.whl` is for Python 3.12 or any Python.
fn is_named_as(file: &str, pinned: &PinnedWheel<'_>) -> bool {
    let Some(stem) = file.strip_suffix(".whl") else { return false };
    let fields: Vec<&str> = stem.split('-').collect();
    let (&[package, version, python, abi, platform] | &[package, version, _, python, abi, platform]) =
        &fields[..]
    else {
        return false;
    };
    normalized(package) == normalized(pinned.wanted.package)
        && version == pinned.wanted.version
        && python.split('.').any(|tag| tag == "py3" || tag == "cp312" || abi == "abi3")
        && ["none", "abi3", "cp312"].contains(&abi)
        && platform.split('.').any(|tag| tag == pinned.wanted.platform)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::pip::Requirement;

    const DIGEST: &str = "000000000000000000000000000000000000000000000000000000000000000a";

    #[test]
    fn pages_in_both_formats_are_read() {
        let files = |text: &str| parse(text.as_bytes());
        let json = format!(
            r#"{{"meta": {{"api-version": "1.1"}}, "name": "p", "files": [
                {{"filename": "p-1-py3-none-any.whl", "url": "../p.whl", "hashes": {{"sha256": "{DIGEST}", "md5": "0"}}, "size": 3}},
                {{"filename": "p-2.tar.gz", "url": "u", "hashes": {{}}, "yanked": false}}]}}"#
        );
        let html = format!(
            "<!DOCTYPE html><html><body><h1>p</h1><abbr href=\"x\">\n<a  class='c'\n HREF2 href = \"../p.whl?a=1&amp;b=2#sha256={DIGEST}\" \
             data-requires-python=\"&gt;=3.9\">p.whl</a><A href='u/p-2.tar.gz'>p</A><a href=q%2Bcu.whl>q</a><a name=\"href\">no</a>"
        );
        let digest = DIGEST.parse().ok();
        let file =
            |name: &str, url: &str, sha256| IndexFile { name: name.to_owned(), url: url.to_owned(), sha256 };
        assert_eq!(
            files(&json),
            Ok(vec![file("p-1-py3-none-any.whl", "../p.whl", digest), file("p-2.tar.gz", "u", None)])
        );
        assert_eq!(
            files(&html),
            Ok(vec![
                file("p.whl", "../p.whl?a=1&b=2", digest),
                file("p-2.tar.gz", "u/p-2.tar.gz", None),
                file("q+cu.whl", "q%2Bcu.whl", None),
            ])
        );
        assert!(files("{\"files\": 3}").is_err() && files("Sign in").is_err() && parse(b"\xff").is_err());
        assert_eq!(files("<html><a"), Ok(Vec::new()));
    }

    #[test]
    fn the_pinned_file_is_selected() {
        let sha256: Sha256 = DIGEST.parse().unwrap();
        let wanted = Requirement { package: "My.Pack_age", version: "1.2", platform: "win_amd64" };
        let pinned = PinnedWheel { wanted, sha256, bytes: 3 };
        let select = |files: &[(&str, Option<Sha256>)]| {
            let files = files.iter().map(|(name, sha256)| IndexFile {
                name: (*name).to_owned(),
                url: String::new(),
                sha256: *sha256,
            });
            select(files.collect(), &pinned).map(|file| file.name)
        };
        let name = "my_pack_age-1.2-cp312-cp312-win_amd64.whl";
        let other = "0".repeat(64).parse().ok();
        assert_eq!(select(&[(name, None), ("any.whl", Some(sha256))]).as_deref(), Some("any.whl"));
        for good in [
            name,
            "my_pack_age-1.2-py3-none-win32.win_amd64.whl",
            "my_pack_age-1.2-1-cp39-abi3-win_amd64.whl",
        ] {
            assert_eq!(select(&[("x", None), (good, None)]).as_deref(), Some(good));
        }
        for bad in [
            "my_pack_age-1.3-cp312-cp312-win_amd64.whl",
            "my_pack_age-1.2-cp313-cp313-win_amd64.whl",
            "my_pack_age-1.2-cp312-cp312-win_arm64.whl",
            "my_pack_age-1.2.tar.gz",
            "pack-1.2-py3-none-win_amd64.whl",
        ] {
            assert_eq!(select(&[(bad, None)]), None, "{bad}");
        }
        assert_eq!(select(&[(name, other), ("../p.whl", Some(sha256)), ("a/b.whl", Some(sha256))]), None);
    }
}
