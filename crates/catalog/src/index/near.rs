//! Which known names a mistyped one is near: by containment first, then by edit distance.

use narthex_spec::ModelName;

/// Names suggested at most.
const LIMIT: usize = 5;

/// Longer texts are no typing errors.
const LONGEST: usize = 80;

/// The names nearest to `text`, each once, among pairs of what may be typed and what it stands for.
pub(super) fn nearest<'a>(
    text: &str,
    known: impl Iterator<Item = (&'a str, &'a ModelName)>,
) -> Vec<ModelName> {
    let wanted = text.trim().to_ascii_lowercase();
    if wanted.is_empty() || wanted.len() > LONGEST {
        return Vec::new();
    }
    let mut scored: Vec<(usize, &ModelName)> =
        known.filter_map(|(typed, name)| Some((score(&wanted, typed)?, name))).collect();
    scored.sort_by_key(|&(score, name)| (score, name.as_str().len(), name));
    let mut names: Vec<ModelName> = Vec::new();
    for (_, name) in scored {
        if !names.contains(name) && names.len() < LIMIT {
            names.push(name.clone());
        }
    }
    names
}

/// Smaller is nearer; nothing for names that are not near at all.
fn score(wanted: &str, typed: &str) -> Option<usize> {
    let (plain_wanted, plain_typed) = (letters(wanted), letters(typed));
    if plain_wanted.len() >= 3 && plain_typed.windows(plain_wanted.len()).any(|window| window == plain_wanted)
    {
        return Some(0);
    }
    let distance = edit_distance(&plain_wanted, &plain_typed);
    (distance <= plain_wanted.len().max(3) / 3).then_some(distance)
}

/// The name without the punctuation that people forget or mix up.
fn letters(name: &str) -> Vec<char> {
    name.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// Insertions, deletions and replacements between two words (Wagner and Fischer 1974).
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (to, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let replaced = diagonal + usize::from(from != to);
            diagonal = *cell;
            left = replaced.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_levenshteins() {
        let check =
            |a: &str, b: &str, expect: usize| assert_eq!(edit_distance(&letters(a), &letters(b)), expect);
        check("", "", 0);
        check("", "abc", 3);
        check("abc", "", 3);
        check("kitten", "sitting", 3);
        check("smolm2", "smollm2", 1);
    }
}
