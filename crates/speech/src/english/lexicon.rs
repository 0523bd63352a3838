//! Pronunciation of words in the dictionaries, with rules for function words, inflections, abbreviations and stress.

use unicode_normalization::UnicodeNormalization;

use super::{
    Accent, PHRASE_END,
    dictionary::Dictionary,
    stress::{self, StressChange},
    token::Token,
};
use crate::error::SpeechError;

/// Phonemes before which an American `t` becomes a flap.
const FLAPPED_AFTER: &str = "AIOWYiuæɑəɛɪɹʊʌ";

/// Key of the pronunciation at the end of a phrase.
const AT_END: &str = "None";

/// The words that follow a word, as far as its pronunciation depends on them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Following {
    /// Set if the next phoneme is a vowel; `None` at the end of a phrase.
    starts_with_vowel: Option<bool>,
    /// Set if the next word is `to`.
    is_to: bool,
}

impl Following {
    /// Returns the state before a word.
    pub(super) fn before(self, token: &Token<'_>) -> Self {
        let phonemes = token.phonemes.as_deref().unwrap_or_default();
        let first = phonemes
            .chars()
            .find(|&c| stress::is_vowel(c) || stress::is_consonant(c) || PHRASE_END.contains(c));
        let starts_with_vowel = match first {
            Some(c) if PHRASE_END.contains(c) => None,
            Some(c) => Some(stress::is_vowel(c)),
            None => self.starts_with_vowel,
        };
        let is_to = match token.text.as_str() {
            "to" | "To" => true,
            "TO" => matches!(token.tag, "TO" | "IN"),
            _ => false,
        };
        Self { starts_with_vowel, is_to }
    }
}

/// Dictionaries and pronunciation rules of one accent of English.
pub(super) struct Lexicon {
    accent: Accent,
    gold: Dictionary,
    silver: Dictionary,
}

/// A word as the rules see it.
#[derive(Clone, Copy)]
struct Query<'a> {
    tag: &'a str,
    stress: Option<StressChange>,
    following: Following,
}

impl Lexicon {
    pub(super) fn from_json(accent: Accent, gold: &[u8], silver: &[u8]) -> Result<Self, SpeechError> {
        Ok(Self { accent, gold: Dictionary::from_json(gold)?, silver: Dictionary::from_json(silver)? })
    }

    /// Returns the phonemes of a word; `None` if no dictionary or rule has it.
    pub(super) fn phonemes(&self, token: &Token<'_>, following: Following) -> Option<String> {
        let word: String = token.text.nfkc().map(|c| if matches!(c, '‘' | '’') { '\'' } else { c }).collect();
        let stress = if word == word.to_lowercase() {
            None
        } else if word == word.to_uppercase() {
            Some(StressChange::Primary)
        } else {
            Some(StressChange::AtLeastSecondary)
        };
        self.word(&word, Query { tag: token.tag, stress, following })
    }

    fn word(&self, word: &str, query: Query<'_>) -> Option<String> {
        if let Some(phonemes) = self.special_case(word, query) {
            return Some(phonemes);
        }
        let lower = word.to_lowercase();
        let word = if self.is_read_in_lowercase(word, &lower, query) { &lower } else { word };
        if self.is_known(word) {
            return self.lookup(word, query);
        }
        if let Some(stem) = word.strip_suffix("s'") {
            let singular = format!("{stem}'s");
            if self.is_known(&singular) {
                return self.lookup(&singular, query);
            }
        }
        if let Some(stem) = word.strip_suffix('\'').filter(|stem| self.is_known(stem)) {
            return self.lookup(stem, query);
        }
        let ing_query = Query { stress: query.stress.or(Some(StressChange::AtLeastSecondary)), ..query };
        self.plural(word, query)
            .or_else(|| self.past(word, query))
            .or_else(|| self.participle(word, ing_query))
    }

    /// Returns whether a word with capital letters is the same word as in lowercase, and not a name or an abbreviation.
    fn is_read_in_lowercase(&self, word: &str, lower: &str, query: Query<'_>) -> bool {
        let letters = word.replace('\'', "");
        let length = word.chars().count();
        let is_word = length > 1 && !letters.is_empty() && letters.chars().all(char::is_alphabetic);
        if !is_word || word == lower || query.tag == "NNP" && length <= 7 {
            return false;
        }
        let rest = word.chars().skip(1);
        let is_capitalized = rest.clone().flat_map(char::to_lowercase).eq(rest);
        if self.gold.contains(word)
            || self.silver.contains(word)
            || !(word == word.to_uppercase() || is_capitalized)
        {
            return false;
        }
        self.gold.contains(lower)
            || self.silver.contains(lower)
            || self.plural(lower, query).is_some()
            || self.past(lower, query).is_some()
            || self.participle(lower, query).is_some()
    }

    /// Returns the phonemes of a word with rules of its own.
    fn special_case(&self, word: &str, query: Query<'_>) -> Option<String> {
        let Query { tag, stress, following } = query;
        match word {
            _ if is_dotted(word) => return self.spelled(word),
            "a" | "A" => return Some(if tag == "DT" { "ɐ" } else { "ˈA" }.to_owned()),
            "am" | "Am" | "AM" => {
                if tag.starts_with("NN") {
                    return self.spelled(word);
                }
                let is_stressed = following.starts_with_vowel.is_none()
                    || word != "am"
                    || stress > Some(StressChange::Secondary);
                return if is_stressed { self.checked("am", "DEFAULT") } else { Some("ɐm".to_owned()) };
            }
            "AN" if tag.starts_with("NN") => return self.spelled(word),
            "an" | "An" | "AN" => return Some("ɐn".to_owned()),
            "I" if tag == "PRP" => return Some("ˌI".to_owned()),
            "by" | "By" | "BY" if parent_tag(tag) == "ADV" => return Some("bˈI".to_owned()),
            "to" | "To" => {}
            "TO" if matches!(tag, "TO" | "IN") => {}

            "in" | "In" => return Some(stressed_in(query)),
            "IN" if tag != "NNP" => return Some(stressed_in(query)),
            "the" | "The" => return Some(article(query)),
            "THE" if tag == "DT" => return Some(article(query)),
            "used" | "Used" | "USED" => {
                let is_habit = matches!(tag, "VBD" | "JJ") && following.is_to;
                return self.checked("used", if is_habit { "VBD" } else { "DEFAULT" });
            }
            _ => {
                let lower = word.to_ascii_lowercase();
                let is_versus = tag == "IN" && matches!(lower.as_str(), "vs" | "vs.");
                return is_versus.then(|| self.lookup("versus", Query { stress: None, ..query })).flatten();
            }
        }
        match following.starts_with_vowel {
            None => self.checked("to", "DEFAULT"),
            Some(false) => Some("tə".to_owned()),
            Some(true) => Some("tʊ".to_owned()),
        }
    }

    /// Returns the phonemes of a word in the dictionary of checked pronunciations.
    fn checked(&self, word: &str, tag: &str) -> Option<String> {
        self.gold.get(word)?.of(tag).map(str::to_owned)
    }

    /// Returns the letters of an abbreviation, with the stress on the last one.
    fn spelled(&self, word: &str) -> Option<String> {
        let mut letters = String::new();
        for c in word.chars().filter(|c| c.is_alphabetic()) {
            let letter: String = c.to_uppercase().collect();
            letters.push_str(self.gold.get(&letter)?.of("DEFAULT")?);
        }
        let letters = stress::changed(&letters, StressChange::Secondary);
        Some(match letters.rsplit_once(stress::SECONDARY) {
            Some((start, last)) => format!("{start}{}{last}", stress::PRIMARY),
            None => letters,
        })
    }

    /// Returns whether [`Self::lookup`] can read a word.
    fn is_known(&self, word: &str) -> bool {
        if self.gold.contains(word) || self.silver.contains(word) {
            return true;
        }
        if word.is_empty() || !word.chars().all(|c| c.is_ascii_alphabetic()) {
            return false;
        }
        if word.len() == 1 || word == word.to_uppercase() && self.gold.contains(&word.to_lowercase()) {
            return true;
        }
        word[1..] == word[1..].to_uppercase()
    }

    /// Returns the phonemes of a word in the dictionaries, or the letters of an abbreviation.
    fn lookup(&self, word: &str, query: Query<'_>) -> Option<String> {
        let is_upper = word == word.to_uppercase() && !self.gold.contains(word);
        let lower = is_upper.then(|| word.to_lowercase());
        let is_name = is_upper && query.tag == "NNP";
        let word = lower.as_deref().unwrap_or(word);
        let gold = self.gold.get(word);
        let pronunciation = gold.or_else(|| self.silver.get(word).filter(|_| !is_name));
        let phonemes = pronunciation.and_then(|pronunciation| {
            if query.following.starts_with_vowel.is_none() && pronunciation.has(AT_END) {
                return pronunciation.of(AT_END);
            }
            let tag = if pronunciation.has(query.tag) { query.tag } else { parent_tag(query.tag) };
            pronunciation.of(tag)
        });
        let is_spelled = phonemes.is_none_or(|phonemes| is_name && !phonemes.contains(stress::PRIMARY));
        if is_spelled && let Some(letters) = self.spelled(word) {
            return Some(letters);
        }
        let phonemes = phonemes?;
        Some(query.stress.map_or_else(|| phonemes.to_owned(), |change| stress::changed(phonemes, change)))
    }

    /// Returns the phonemes of a word with the suffix `s`, given those of its stem.
    fn plural(&self, word: &str, query: Query<'_>) -> Option<String> {
        let stem = word.strip_suffix('s').filter(|stem| stem.chars().count() >= 2)?;
        let length = word.chars().count();
        let singular = if !word.ends_with("ss") && self.is_known(stem) {
            stem.to_owned()
        } else {
            let is_ies = length > 4 && word.ends_with("ies");
            let es = word.strip_suffix("es").filter(|_| length > 4 && !is_ies);
            let stem = word.strip_suffix("'s").or(es).filter(|stem| self.is_known(stem));
            let with_y = word.strip_suffix("ies").filter(|_| is_ies).map(|stem| format!("{stem}y"));
            stem.map(str::to_owned).or_else(|| with_y.filter(|stem| self.is_known(stem)))?
        };
        let mut phonemes = self.lookup(&singular, query)?;
        phonemes.push_str(match phonemes.chars().last()? {
            'p' | 't' | 'k' | 'f' | 'θ' => "s",
            's' | 'z' | 'ʃ' | 'ʒ' | 'ʧ' | 'ʤ' => match self.accent {
                Accent::British => "ɪz",
                Accent::American => "ᵻz",
            },
            _ => "z",
        });
        Some(phonemes)
    }

    /// Returns the phonemes of a word with the suffix `ed`, given those of its stem.
    fn past(&self, word: &str, query: Query<'_>) -> Option<String> {
        let length = word.chars().count();
        let stem = word.strip_suffix('d').filter(|_| length >= 4)?;
        let ed = word.strip_suffix("ed").filter(|_| length > 4 && !word.ends_with("eed"));
        let stem = if !word.ends_with("dd") && self.is_known(stem) { stem } else { ed? };
        if !self.is_known(stem) {
            return None;
        }
        let phonemes = self.lookup(stem, query)?;

        let mut ends = phonemes.chars().rev();
        let last = ends.next()?;
        let suffix = match (last, self.accent) {
            ('p' | 'k' | 'f' | 'θ' | 'ʃ' | 's' | 'ʧ', _) => "t",
            ('d', Accent::British) => "ɪd",
            ('d', Accent::American) => "ᵻd",
            ('t', Accent::British) => "ɪd",
            ('t', Accent::American) => match ends.next() {
                None => "ɪd",
                Some(c) if FLAPPED_AFTER.contains(c) => {
                    return Some(format!("{}ɾᵻd", &phonemes[..phonemes.len() - 1]));
                }
                Some(_) => "ᵻd",
            },
            _ => "d",
        };
        Some(phonemes + suffix)
    }

    /// Returns the phonemes of a word with the suffix `ing`, given those of its stem.
    fn participle(&self, word: &str, query: Query<'_>) -> Option<String> {
        let length = word.chars().count();
        let stem = word.strip_suffix("ing").filter(|_| length >= 5)?;
        let with_e = format!("{stem}e");
        let stem = if length > 5 && self.is_known(stem) {
            stem
        } else if self.is_known(&with_e) {
            &with_e
        } else {
            let mut ends = stem.chars().rev();
            let last = ends.next()?;
            let before = ends.next()?;
            let is_doubled = last == before && "bcdgklmnprstvxz".contains(last);
            let single = &stem[..stem.len() - last.len_utf8()];
            let is_stem = length > 5 && (is_doubled || [before, last] == ['c', 'k']) && self.is_known(single);
            is_stem.then_some(single)?
        };

        let phonemes = self.lookup(stem, query)?;
        let mut ends = phonemes.chars().rev();
        let last = ends.next()?;
        match self.accent {
            Accent::British if matches!(last, 'ə' | 'ː') => None,
            Accent::American if last == 't' && ends.next().is_some_and(|c| FLAPPED_AFTER.contains(c)) => {
                Some(format!("{}ɾɪŋ", &phonemes[..phonemes.len() - 1]))
            }
            _ => Some(phonemes + "ɪŋ"),
        }
    }
}

/// Returns the part of speech of a tag, as dictionaries name it.
fn parent_tag(tag: &str) -> &str {
    match tag {
        tag if tag.starts_with("VB") => "VERB",
        tag if tag.starts_with("NN") => "NOUN",
        tag if tag.starts_with("ADV") || tag.starts_with("RB") => "ADV",
        tag if tag.starts_with("ADJ") || tag.starts_with("JJ") => "ADJ",
        tag => tag,
    }
}

/// Returns true for letters with dots between them, such as `U.S.`.
fn is_dotted(word: &str) -> bool {
    let letters = word.replace('.', "");
    word.trim_matches('.').contains('.')
        && !letters.is_empty()
        && letters.chars().all(char::is_alphabetic)
        && word.split('.').all(|part| part.chars().count() < 3)
}

fn stressed_in(Query { tag, following, .. }: Query<'_>) -> String {
    let is_stressed = following.starts_with_vowel.is_none() || tag != "IN";
    if is_stressed { "ˈɪn" } else { "ɪn" }.to_owned()
}

fn article(query: Query<'_>) -> String {
    if query.following.starts_with_vowel == Some(true) { "ði" } else { "ðə" }.to_owned()
}
