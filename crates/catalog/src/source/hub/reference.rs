//! Names of repositories, revisions and files on the hub, with checks that they are safe in a path or URL.

use crate::archive::is_plain;

/// Returns true if a string is `owner/name`.
pub(crate) fn is_repo(text: &str) -> bool {
    text.split_once('/').is_some_and(|(owner, name)| is_repo_part(owner) && is_repo_part(name))
}

fn is_repo_part(part: &str) -> bool {
    (1..=96).contains(&part.len())
        && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && !part.contains("..")
        && !part.starts_with(['.', '-'])
}

/// Returns true if a string can be a branch, tag or commit.
pub(crate) fn is_revision(text: &str) -> bool {
    text.len() <= 200
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'))
        && is_plain(text)
}

/// Returns true if a string is a full commit hash.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Returns true if a file's path stays inside its repository's folder.
pub(super) fn is_safe_path(text: &str) -> bool {
    text.len() <= 1000 && is_plain(text)
}

/// Returns an ETag without `W/` and quotes, or `None` if it is not a safe file name.
pub(super) fn blob_name(etag: &str) -> Option<&str> {
    let bare = etag.trim().trim_start_matches("W/").trim_matches('"');
    ((1..=128).contains(&bare.len())
        && bare.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && !bare.starts_with('.'))
    .then_some(bare)
}

/// Percent-encodes everything but unreserved characters and `/` (RFC 3986, section 2.3).
pub(super) fn encode_path(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Percent-encodes everything but unreserved characters.
pub(super) fn encode_component(text: &str) -> String {
    encode_path(text).replace('/', "%2F")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_have_two_plain_parts() {
        for good in
            ["a/b", "HuggingFaceTB/SmolLM2-135M-Instruct", "apple/OpenELM-1_1B", "microsoft/Phi-3.5-mini"]
        {
            assert!(is_repo(good), "{good}");
        }
        for bad in ["", "a", "a/b/c", "../b", "a/..", "a /b", "a/b?c", "-a/b", "a/b\n"] {
            assert!(!is_repo(bad), "{bad:?}");
        }
    }

    #[test]
    fn etags_become_names_or_nothing() {
        let check = |etag: &str, expect: Option<&str>| assert_eq!(blob_name(etag), expect, "{etag}");
        check("\"abc\"", Some("abc"));
        check("W/\"abc\"", Some("abc"));
        check("abc-3", Some("abc-3"));
        check("\"../x\"", None);
        check("\"a/b\"", None);
        check("\"\"", None);
    }

    #[test]
    fn paths_are_percent_encoded() {
        assert_eq!(encode_path("a b/c#é.json"), "a%20b/c%23%C3%A9.json");
        assert_eq!(encode_component("refs/pr/1"), "refs%2Fpr%2F1");
    }

    #[test]
    fn revisions_are_plain() {
        for good in ["main", "v1.0", "refs/pr/1"] {
            assert!(is_revision(good), "{good}");
        }
        for bad in ["", "a b", "../x", "/x", "a@b"] {
            assert!(!is_revision(bad), "{bad}");
        }
    }
}
