//! Stress marks in phonemes.

/// Mark before a vowel with primary stress.
pub(super) const PRIMARY: char = 'ˈ';

/// Mark before a vowel with secondary stress.
pub(super) const SECONDARY: char = 'ˌ';

const VOWELS: &str = "AIOQWYaiuæɑɒɔəɛɜɪʊʌᵻ";
const CONSONANTS: &str = "bdfhjklmnpstvwzðŋɡɹɾʃʒʤʧθ";
const DIPHTHONGS: &str = "AIOQWYʤʧ";

/// Change of the stress of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StressChange {
    /// Primary stress becomes secondary.
    Reduce,
    /// A word without stress gets secondary stress; primary stress becomes secondary.
    Secondary,
    /// A word without stress gets secondary stress.
    AtLeastSecondary,
    /// A word without primary stress gets it.
    Primary,
}

/// Returns true for a vowel.
pub(super) fn is_vowel(c: char) -> bool {
    VOWELS.contains(c)
}

/// Returns true for a consonant.
pub(super) fn is_consonant(c: char) -> bool {
    CONSONANTS.contains(c)
}

/// Returns the length of phonemes, where a diphthong counts twice.
pub(super) fn weight(phonemes: &str) -> usize {
    phonemes.chars().map(|c| if DIPHTHONGS.contains(c) { 2 } else { 1 }).sum()
}

/// Returns phonemes with secondary in place of primary stress.
pub(super) fn reduced(phonemes: &str) -> String {
    changed(phonemes, StressChange::Reduce)
}

/// Returns phonemes with another stress.
pub(super) fn changed(phonemes: &str, change: StressChange) -> String {
    let has_primary = phonemes.contains(PRIMARY);
    let has_secondary = phonemes.contains(SECONDARY);
    let has_vowel = phonemes.contains(is_vowel);
    match change {
        StressChange::Reduce | StressChange::Secondary if has_primary => {
            phonemes.replace(SECONDARY, "").replace(PRIMARY, "ˌ")
        }
        StressChange::Secondary | StressChange::AtLeastSecondary
            if !has_primary && !has_secondary && has_vowel =>
        {
            before_vowel(SECONDARY, phonemes)
        }
        StressChange::Primary if !has_primary && has_secondary => phonemes.replace(SECONDARY, "ˈ"),
        StressChange::Primary if !has_primary && has_vowel => before_vowel(PRIMARY, phonemes),
        _ => phonemes.to_owned(),
    }
}

/// Inserts a mark before the first vowel of phonemes without stress.
fn before_vowel(mark: char, phonemes: &str) -> String {
    let mut text = phonemes.to_owned();
    text.insert(phonemes.find(is_vowel).unwrap_or(0), mark);
    text
}
