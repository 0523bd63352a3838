//! Suggestions for a mistyped name: names that contain it, then names within a small edit distance, with all sizes of
//! the nearest family, or one name of each family if the text fits several.

use std::collections::BTreeSet;

use narthex_spec::ModelName;

/// Maximum number of suggestions, apart from the sizes of one family.
const LIMIT: usize = 5;

/// Maximum length in bytes of a text that counts as a mistyped name.
const MAX_NAME_BYTES: usize = 80;

/// Returns the names nearest to `text`, each once. `known` has pairs of a spelling and the name that it stands for.
/// Equally near names, and the sizes of a family, keep the order of `known`.
pub(super) fn nearest<'a>(
    text: &str,
    known: impl Iterator<Item = (&'a str, &'a ModelName)>,
) -> Vec<ModelName> {
    let typed = text.trim().to_ascii_lowercase();
    if typed.is_empty() || typed.len() > MAX_NAME_BYTES {
        return Vec::new();
    }

    let all: Vec<(&str, &ModelName)> = known.collect();
    let mut scored: Vec<(usize, &ModelName)> =
        all.iter().filter_map(|&(spelling, name)| Some((score(&typed, spelling)?, name))).collect();
    scored.sort_by_key(|&(score, _)| score);
    let of_families = first_of_each_family(&typed, &scored);
    if of_families.len() > 1 {
        return of_families;
    }

    let mut names: Vec<ModelName> = Vec::new();
    for (_, name) in &scored {
        if !names.contains(name) && names.len() < LIMIT {
            names.push((*name).clone());
        }
    }

    // All sizes of the nearest family are listed, even if the text names a size.
    let nearest = names.first().map(family).map(str::to_owned);
    let mut sizes: Vec<ModelName> = Vec::new();
    for name in names
        .iter()
        .take(1)
        .chain(all.iter().map(|(_, name)| *name))
        .filter(|name| nearest.as_deref() == Some(family(name)))
    {
        if !sizes.contains(name) {
            sizes.push(name.clone());
        }
    }

    let others = names.into_iter().filter(|name| !sizes.contains(name)).collect::<Vec<_>>();
    let room = LIMIT.saturating_sub(sizes.len());
    sizes.into_iter().chain(others.into_iter().take(room)).collect()
}

/// Returns the first name of each family among the nearest names, if these are more than [`LIMIT`] and the text names no
/// family.
fn first_of_each_family(typed: &str, scored: &[(usize, &ModelName)]) -> Vec<ModelName> {
    let nearest = scored.first().map(|(score, _)| *score);
    let tied = || scored.iter().take_while(|(score, _)| Some(*score) == nearest).map(|(_, name)| *name);
    if tied().collect::<BTreeSet<_>>().len() <= LIMIT
        || tied().any(|name| typed.split(':').next() == Some(family(name)))
    {
        return Vec::new();
    }
    let mut known = BTreeSet::new();
    tied().filter(|name| known.insert(family(name))).take(LIMIT).cloned().collect()
}

/// Returns the part of a name that is common to the sizes of a family.
fn family(name: &ModelName) -> &str {
    name.as_str().split(':').next().unwrap_or_default()
}

/// Returns the distance between two spellings, or `None` if they are not similar.
fn score(typed: &str, spelling: &str) -> Option<usize> {
    if spelling.split(|c: char| !c.is_alphanumeric()).any(|part| part.chars().count() >= 2 && part == typed) {
        return Some(0);
    }
    let typed = alphanumeric(typed);
    let spelling = alphanumeric(spelling);
    let length = typed.chars().count();
    if length >= 3 && spelling.contains(&typed) {
        return Some(0);
    }
    let distance = strsim::levenshtein(&typed, &spelling);
    (distance <= length.max(3) / 3).then_some(distance)
}

/// Removes the punctuation, which users often forget or confuse.
fn alphanumeric(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known_models::{KNOWN_MODELS, KnownModel};

    #[test]
    fn every_model_in_place_of_another_exists() {
        let catalog = crate::index::Catalog::builtin().unwrap();
        for KnownModel { beginning, instead, .. } in KNOWN_MODELS {
            for name in *instead {
                assert!(catalog.get(&name.parse().unwrap()).is_some(), "{beginning}: {name}");
            }
            // The catalogue itself has no model of this name.
            let wished = beginning.trim_end_matches(':');
            assert!(catalog.get(&wished.parse().unwrap()).is_none() && catalog.sizes(wished).is_empty());
            assert_eq!(catalog.suggest(wished).len(), instead.len(), "{wished}");
        }
        let first = |text: &str| catalog.suggest(text).first().map(ToString::to_string);
        assert_eq!(first("deepseek-r1:7b").as_deref(), Some("qwen3:8b"));
        assert_eq!(first("mixtral:8x7b").as_deref(), Some("mistral:7b"));
        assert_eq!(first("llama3").as_deref(), Some("qwen3:8b"));
        // Models that read images have models that read images in their place, also where a name resembles another.
        for name in ["llava:7b", "llama3.2-vision", "qwen2.5vl:3b", "qwen3-vl"] {
            assert_eq!(first(name).as_deref(), Some("gemma3:4b"), "{name}");
        }
        assert_eq!(first("moondream").as_deref(), Some("smolvlm:500m"));
        assert_eq!(first("llama3.2:7b").as_deref(), Some("llama3.2:1b"), "a size of a known family");
    }

    #[test]
    fn scores_are_edit_distances_of_near_names() {
        let check = |typed: &str, spelling: &str, expect: Option<usize>| {
            assert_eq!(score(typed, spelling), expect, "{typed} {spelling}");
        };
        check("", "", Some(0));
        check("", "abc", None);
        check("kitten", "sitting", None);
        check("smolm-2", "smollm2", Some(1));
        check("llm2", "smollm2:135m", Some(0));
        check("e5", "multilingual-e5-small", Some(0));
        check("e", "multilingual-e5-small", None);
    }
}
