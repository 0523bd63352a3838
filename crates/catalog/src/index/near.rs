//! Suggestions for a mistyped name: names that contain it, then names within a small edit distance.

use narthex_spec::ModelName;

/// Maximum number of suggestions.
const LIMIT: usize = 5;

/// Longest text, in bytes, that is taken for a mistyped name.
const LONGEST: usize = 80;

/// Returns the names nearest to `text`, each once, among pairs of a known spelling and the name it stands for.
pub(super) fn nearest<'a>(
    text: &str,
    known: impl Iterator<Item = (&'a str, &'a ModelName)>,
) -> Vec<ModelName> {
    let typed = text.trim().to_ascii_lowercase();
    if typed.is_empty() || typed.len() > LONGEST {
        return Vec::new();
    }
    let mut scored: Vec<(usize, &ModelName)> =
        known.filter_map(|(spelling, name)| Some((score(&typed, spelling)?, name))).collect();
    scored.sort_by_key(|&(score, name)| (score, name.as_str().len(), name));
    let mut names: Vec<ModelName> = Vec::new();
    for (_, name) in scored {
        if !names.contains(name) && names.len() < LIMIT {
            names.push(name.clone());
        }
    }
    names
}

/// Returns how far apart two spellings are, or `None` if they are not near each other.
fn score(typed: &str, spelling: &str) -> Option<usize> {
    let (typed, spelling) = (alphanumeric(typed), alphanumeric(spelling));
    let length = typed.chars().count();
    if length >= 3 && spelling.contains(&typed) {
        return Some(0);
    }
    let distance = strsim::levenshtein(&typed, &spelling);
    (distance <= length.max(3) / 3).then_some(distance)
}

/// Removes the punctuation, which people forget or mix up.
fn alphanumeric(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
