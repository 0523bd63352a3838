//! Selection of the files of a checkpoint.
//!
//! The matching is our own because entries use only `*` and a leading `!`.

use super::reference::is_safe_path;
use crate::error::HubError;

/// Default patterns, for entries without their own: weights at the top level, configurations, tokenizers, templates,
/// pooling.
const USUAL: &[&str] = &[
    "*.safetensors",
    "*.gguf",
    "*.json",
    "*.jinja",
    "tokenizer.model",
    "vocab.txt",
    "merges.txt",
    "1_Pooling/config.json",
    "!consolidated*",
    "!adapter_*",
    "!*.fp16.safetensors",
];

/// Returns true if a file matches a pattern and none of those with a leading `!`. Without patterns, [`USUAL`] applies.
pub(crate) fn wanted(name: &str, patterns: &[String]) -> bool {
    let usual;
    let patterns: &[String] = if patterns.is_empty() {
        usual = USUAL.iter().map(|&pattern| pattern.to_owned()).collect::<Vec<_>>();
        &usual
    } else {
        patterns
    };
    let (excluded, included): (Vec<&str>, Vec<&str>) =
        patterns.iter().map(String::as_str).partition(|pattern| pattern.starts_with('!'));
    let excludes = |pattern: &&str| matches(pattern.trim_start_matches('!'), name);
    included.iter().any(|pattern| matches(pattern, name)) && !excluded.iter().any(excludes)
}

/// Returns true if a file has weights in a format that Narthex reads.
pub(crate) fn is_weights(name: &str) -> bool {
    is_gguf(name) || name.ends_with(".safetensors")
}

/// Returns true if a file is GGUF, by its name.
pub(crate) fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf")
}

/// Returns true if a checkpoint's files include a tokenizer that Narthex reads.
pub(super) fn has_tokenizer(names: &[String]) -> bool {
    let is_tokenizer = |name: &String| matches!(name.as_str(), "tokenizer.json" | "tokenizer.model");
    names.iter().any(|name| is_tokenizer(name) || is_gguf(name))
}

/// Returns the files to download from a repository, sorted.
///
/// GGUF files are skipped if there are safetensors. A repository with only GGUF files must have exactly one, unless the
/// user names one.
pub(super) fn choose<'a>(
    repo: &str,
    names: impl Iterator<Item = &'a str>,
    patterns: &[String],
) -> Result<Vec<String>, HubError> {
    let all: Vec<&str> = names.collect();
    let chosen = all.iter().filter(|name| wanted(name, patterns));
    let mut chosen: Vec<String> = chosen.map(|&name| name.to_owned()).collect();
    chosen.sort();
    chosen.dedup();
    if let Some(name) = chosen.iter().find(|name| !is_safe_path(name)) {
        return Err(HubError::HostileName { repo: repo.to_owned(), name: name.chars().take(200).collect() });
    }
    let gguf: Vec<String> = chosen.iter().filter(|name| is_gguf(name)).cloned().collect();
    let weights = chosen.iter().filter(|name| is_weights(name)).count();
    match (gguf.len(), weights) {
        (_, 0) => {
            let names: Vec<String> =
                all.iter().filter(|name| is_weights(name)).map(|&name| name.to_owned()).collect();
            let (repo, wanted) = (repo.to_owned(), patterns.to_vec());
            Err(match names.is_empty() || wanted.is_empty() {
                true => HubError::NoWeights { repo },
                false => HubError::NoSuchWeights { repo, wanted, names },
            })
        }
        (0, _) => Ok(chosen),
        (files, all) if files < all => {
            chosen.retain(|name| !is_gguf(name));
            Ok(chosen)
        }
        (1, _) => Ok(gguf),
        _ => Err(HubError::ManyGguf { repo: repo.to_owned(), names: gguf }),
    }
}

/// Returns true if `name` matches `pattern`, in which `*` matches any characters except `/`.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == name };
    let Some(rest) = name.strip_prefix(before) else { return false };
    let reach = rest.find('/').unwrap_or(rest.len());
    (0..=reach)
        .filter(|&at| rest.is_char_boundary(at))
        .any(|at| rest.get(at..).is_some_and(|tail| matches(after, tail)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stop_at_slashes() {
        let check = |pattern: &str, name: &str, expect: bool| {
            assert_eq!(matches(pattern, name), expect, "{pattern} {name}")
        };
        check("*.json", "config.json", true);
        check("*.json", "onnx/config.json", false);
        check("model-*-of-*.safetensors", "model-00001-of-00002.safetensors", true);
        check("a*b*c", "abcbc", true);
        check("a*b*c", "abcb", false);
        check("*", "é", true);
        check("exact", "exactly", false);
    }

    #[test]
    fn the_usual_files_are_the_checkpoint() {
        let check = |name: &str, expect: bool| assert_eq!(wanted(name, &[]), expect, "{name}");
        check("model.safetensors", true);
        check("model-00001-of-00004.safetensors", true);
        check("model.safetensors.index.json", true);
        check("tokenizer.json", true);
        check("1_Pooling/config.json", true);
        check("consolidated.safetensors", false);
        check("onnx/model.onnx", false);
        check("pytorch_model.bin", false);
        check("README.md", false);
    }

    #[test]
    fn gguf_files_are_chosen_only_when_it_is_clear_which() {
        let check = |names: &[&str], patterns: &[&str], expect: Result<&[&str], &str>| {
            let patterns: Vec<String> = patterns.iter().map(|&p| p.to_owned()).collect();
            match (choose("o/r", names.iter().copied(), &patterns), expect) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                other => panic!("{other:?}"),
            }
        };
        check(&["b.safetensors", "x.gguf", "config.json"], &[], Ok(&["b.safetensors", "config.json"]));
        check(&["x.gguf", "README.md", "config.json"], &[], Ok(&["x.gguf"]));
        check(&["q4.gguf", "q8.gguf"], &[], Err("has 2 GGUF files: q4.gguf, q8.gguf"));
        check(&["q4.gguf", "q8.gguf"], &["q8.gguf"], Ok(&["q8.gguf"]));
        check(&["config.json", "pytorch_model.bin"], &[], Err("no .safetensors or .gguf"));
        let there = &["config.json", "a.gguf", "b.gguf"];
        check(there, &["zz.gguf"], Err("o/r has no zz.gguf; its weights are a.gguf, b.gguf"));
        check(
            &["../../x.json", "a.safetensors"],
            &["*/*/*.json", "*.safetensors"],
            Err("would leave its folder"),
        );
    }
}
