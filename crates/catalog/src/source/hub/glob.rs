//! Selection of the files of a checkpoint.
//!
//! The matching is our own because entries use only `*` and a leading `!`.

use narthex_files::PartName;

use super::reference::is_safe_path;
use crate::error::HubError;

/// Default patterns, for entries without their own: weights at the top level (`model.bin` is CTranslate2's), configurations, tokenizers, templates,
/// modules of sentence-transformers.
const USUAL: &[&str] = &[
    "*.safetensors",
    "*.gguf",
    "model.bin",
    "*.json",
    "*.jinja",
    "tokenizer.model",
    "vocab.txt",
    "merges.txt",
    "1_Pooling/config.json",
    "1_LogitScore/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "3_Dense/config.json",
    "3_Dense/model.safetensors",
    "!consolidated*",
    "!adapter_*",
    "!*.fp16.safetensors",
    "!*.fp32-*.safetensors",
];

/// File with the settings of an adapter of PEFT.
const ADAPTER_CONFIG: &str = "adapter_config.json";

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
    included.iter().any(|pattern| matches(pattern, name))
        && !excluded.iter().any(|pattern| matches(pattern.trim_start_matches('!'), name))
}

/// Returns true if a file has weights in a format that Narthex reads.
pub(crate) fn is_weights(name: &str) -> bool {
    is_gguf(name) || name.ends_with(".safetensors") || name == "model.bin"
}

/// Returns true if a file is GGUF, by its name.
pub(crate) fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf")
}

/// Returns true if a checkpoint's files include a tokenizer that Narthex reads.
pub(super) fn has_tokenizer(names: &[String]) -> bool {
    names.iter().any(|name| matches!(name.as_str(), "tokenizer.json" | "tokenizer.model") || is_gguf(name))
}

/// Returns true if the files are those of an adapter of PEFT, which has no tokenizer.
pub(super) fn is_adapter(names: &[String]) -> bool {
    names.iter().any(|name| name == ADAPTER_CONFIG)
}

/// Returns the files to download from a repository, sorted.
///
/// GGUF files are skipped if there are safetensors. A repository with only GGUF files must have exactly one, or the parts
/// of one, unless the user names one. A pattern that names a part selects all of them.
pub(super) fn choose<'a>(
    repo: &str,
    names: impl Iterator<Item = &'a str>,
    patterns: &[String],
) -> Result<Vec<String>, HubError> {
    let all: Vec<&str> = names.collect();
    let patterns = &with_all_parts(patterns)[..];
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
            let repo = repo.to_owned();
            if patterns.is_empty() && all.contains(&ADAPTER_CONFIG) {
                return Err(HubError::Adapter { repo });
            }
            let wanted = patterns.to_vec();
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
        (1, _) if first_part(&gguf).is_none() => Ok(gguf),
        _ => match first_part(&gguf) {
            Some(part) => match missing_part(part, &gguf) {
                None => Ok(gguf),
                Some(name) => Err(HubError::MissingPart { repo: repo.to_owned(), name }),
            },
            None => Err(HubError::ManyGguf { repo: repo.to_owned(), names: gguf }),
        },
    }
}

/// Returns the GGUF file to open among the chosen files of a repository, if its weights are in that format: the file
/// itself, or the first of its parts.
pub(crate) fn gguf_of(names: &[String]) -> Option<&String> {
    names.iter().filter(|name| is_weights(name)).min().filter(|name| is_gguf(name))
}

/// Returns the name of the first of some files if all of them are parts of one GGUF file.
fn first_part(names: &[String]) -> Option<PartName<'_>> {
    let first = PartName::parse(names.first()?)?;
    let mut parts = names.iter().map(|name| PartName::parse(name));
    parts.all(|part| part.is_some_and(|part| part.is_of_same_file(first))).then_some(first)
}

/// Returns the first part of a GGUF file that is not among `names`.
pub(crate) fn missing_part(part: PartName<'_>, names: &[String]) -> Option<String> {
    part.all().find(|name| !names.contains(name))
}

/// Returns the patterns with the names of all parts in the place of the name of one part.
fn with_all_parts(patterns: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    for pattern in patterns {
        match PartName::parse(pattern) {
            Some(part) => names.extend(part.all()),
            None => names.push(pattern.clone()),
        }
    }
    names
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
        check("1_LogitScore/config.json", true);
        check("2_Dense/config.json", true);
        check("2_Dense/model.safetensors", true);
        check("2_Dense/pytorch_model.bin", false);
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
        let parts = &["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"];
        check(parts, &[], Ok(parts));
        check(parts, &[parts[1]], Ok(parts));
        check(&["q8.gguf", parts[0], parts[1]], &[parts[0]], Ok(parts));
        check(&["q8.gguf", parts[0], parts[1]], &[], Err("has 3 GGUF files"));
        check(&parts[1..], &[], Err("has no x-00001-of-00002.gguf, a part of its weights"));
        check(&parts[..1], &[parts[0]], Err("has no x-00002-of-00002.gguf"));
        let folder = &["q4/x-00001-of-00002.gguf", "q4/x-00002-of-00002.gguf"];
        check(folder, &[folder[1]], Ok(folder));
        check(&["config.json", "pytorch_model.bin"], &[], Err("no .safetensors or .gguf"));
        let adapter = &["adapter_config.json", "adapter_model.safetensors", "README.md"];
        check(adapter, &[], Err("o/r has an adapter of PEFT, expected a model"));
        check(adapter, &["adapter_*"], Ok(&adapter[..2]));
        let there = &["config.json", "a.gguf", "b.gguf"];
        check(there, &["zz.gguf"], Err("o/r has no zz.gguf; its weights are a.gguf, b.gguf"));
        check(
            &["../../x.json", "a.safetensors"],
            &["*/*/*.json", "*.safetensors"],
            Err("would leave its folder"),
        );
    }
}
