//! Division of a paragraph into sentences. Numbers, abbreviations and initials are never cut.

/// Abbreviations that a name or a number follows, so that no sentence ends after them.
const BEFORE_NAMES: &[&str] = &[
    "Adm", "Atty", "Capt", "Cmdr", "Col", "Cpl", "Dr", "Fr", "Ft", "Gen", "Gov", "Hon", "Lt", "Maj",
    "Messrs", "Mlle", "Mme", "Mr", "Mrs", "Ms", "Msgr", "Mt", "Pres", "Prof", "Rep", "Rev", "Sen", "Sgt",
    "St", "Supt", "e.g", "i.e", "cf", "viz", "vs", "approx", "ca", "Fig", "fig", "Figs", "Eq", "eq", "Sec",
    "Ch", "ch", "Vol", "vol", "No", "Nos", "no", "nos", "pp", "ed", "eds", "incl", "esp",
];

/// Abbreviations after which a sentence may end.
const ANYWHERE: &[&str] = &[
    "a.m", "p.m", "A.M", "P.M", "Ph.D", "B.A", "M.A", "M.D", "U.S", "U.K", "U.N", "E.U", "D.C", "Jr", "Sr",
    "Inc", "Ltd", "Co", "Corp", "Bros", "Ave", "Blvd", "Rd", "Dept", "Univ", "Jan", "Feb", "Mar", "Apr",
    "Jun", "Jul", "Aug", "Sep", "Sept", "Oct", "Nov", "Dec", "Mon", "Tue", "Tues", "Wed", "Thu", "Thurs",
    "Fri", "Sat", "Sun", "etc", "al",
];

/// Words that begin a sentence and are not part of a name.
const BEGINNINGS: &[&str] = &[
    "A",
    "After",
    "Again",
    "All",
    "Also",
    "Although",
    "An",
    "And",
    "Another",
    "Any",
    "As",
    "At",
    "Because",
    "Before",
    "Both",
    "But",
    "By",
    "Can",
    "Could",
    "Did",
    "Do",
    "Does",
    "During",
    "Each",
    "Even",
    "Every",
    "First",
    "For",
    "From",
    "Had",
    "Has",
    "Have",
    "He",
    "Her",
    "Here",
    "His",
    "How",
    "However",
    "I",
    "If",
    "In",
    "Instead",
    "Is",
    "It",
    "Its",
    "Later",
    "Let",
    "Many",
    "Maybe",
    "Meanwhile",
    "Most",
    "My",
    "Next",
    "No",
    "Not",
    "Now",
    "Of",
    "On",
    "Once",
    "One",
    "Or",
    "Other",
    "Our",
    "Perhaps",
    "Please",
    "See",
    "She",
    "Should",
    "Since",
    "So",
    "Some",
    "Soon",
    "Still",
    "Such",
    "That",
    "The",
    "Their",
    "Then",
    "There",
    "These",
    "They",
    "This",
    "Those",
    "Though",
    "Thus",
    "To",
    "Today",
    "Two",
    "Under",
    "Until",
    "We",
    "Well",
    "Were",
    "What",
    "When",
    "Where",
    "Which",
    "While",
    "Who",
    "Why",
    "Will",
    "With",
    "Would",
    "Yes",
    "Yet",
    "You",
    "Your",
];

/// Marks that may follow the punctuation at the end of a sentence.
const CLOSING: &str = "\"”’')]»";

/// Marks that may precede the first word of a sentence.
const OPENING: &str = "\"“‘'([«—-";

/// Returns the sentences of a paragraph, in order and without surrounding spaces.
pub fn sentences(paragraph: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut start = 0;
    let mut offset = 0;
    while let Some(found) = paragraph[offset..].find(is_end) {
        let end = end_of_marks(paragraph, offset + found);
        let rest = paragraph[end..].trim_start();
        let has_space = rest.len() < paragraph.len() - end;
        let is_wide = paragraph[..end].ends_with(['。', '！', '？']);
        let marks = &paragraph[offset + found..end];
        if (has_space || is_wide)
            && !rest.is_empty()
            && ends_sentence(&paragraph[start..offset + found], marks, rest)
        {
            sentences.push(paragraph[start..end].trim());
            start = end;
        }
        offset = end;
    }
    sentences.push(paragraph[start..].trim());
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

fn is_end(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '…' | '。' | '！' | '？' | '।')
}

/// Returns the offset after the punctuation at `start` and the marks that close the sentence.
fn end_of_marks(paragraph: &str, start: usize) -> usize {
    let marks = paragraph[start..].trim_start_matches(is_end);
    let marks = marks.trim_start_matches(|c| CLOSING.contains(c));
    paragraph.len() - marks.len()
}

/// Returns whether a sentence ends between `before`, with punctuation after it, and `rest`.
fn ends_sentence(before: &str, marks: &str, rest: &str) -> bool {
    let next = rest.trim_start_matches(|c| OPENING.contains(c));
    let starts_in_lowercase = next.starts_with(char::is_lowercase);
    if starts_in_lowercase {
        // Names such as iPhone have a capital letter inside.
        return next.split_whitespace().next().is_some_and(|word| word.contains(char::is_uppercase));
    }
    if !marks.starts_with('.') || marks.starts_with("..") {
        return true;
    }

    let word = before.rsplit(char::is_whitespace).next().unwrap_or(before);
    let word = word.trim_start_matches(|c| OPENING.contains(c));
    let mut chars = word.chars();
    let is_initial = matches!((chars.next(), chars.next()), (Some(c), None) if c.is_uppercase());
    if is_initial {
        return word == "I" || begins_sentence(next);
    }
    if BEFORE_NAMES.contains(&word) {
        return matches!(word, "no" | "No" | "St") && begins_sentence(next);
    }
    if ANYWHERE.contains(&word) || is_dotted(word) {
        return begins_sentence(next);
    }
    // A number at the start of a paragraph numbers it.
    let is_number = !word.is_empty() && word.chars().all(|c| c.is_ascii_digit());
    !(is_number && before.trim() == word)
}

/// Returns true for a text whose first word begins a sentence.
fn begins_sentence(text: &str) -> bool {
    let word = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    BEGINNINGS.contains(&word)
}

/// Returns true for letters with dots between them.
fn is_dotted(word: &str) -> bool {
    word.contains('.')
        && word.split('.').all(|part| part.chars().count() == 1 && part.chars().all(char::is_alphabetic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_at_punctuation_but_not_in_numbers_and_abbreviations() {
        let check =
            |paragraph: &str, expect: &[&str]| assert_eq!(sentences(paragraph), expect, "{paragraph}");
        check("One. Two! Three? Four… Five", &["One.", "Two!", "Three?", "Four…", "Five"]);
        check("Pi is 3.14 today. Yes.", &["Pi is 3.14 today.", "Yes."]);
        check("Dr. Smith met Mrs. Jones. They left.", &["Dr. Smith met Mrs. Jones.", "They left."]);
        check("It costs $5.50. Buy it.", &["It costs $5.50.", "Buy it."]);
        check("J. K. Rowling wrote it. I read it.", &["J. K. Rowling wrote it.", "I read it."]);
        check("Plan B. The end.", &["Plan B.", "The end."]);
        check("See e.g. Paris or i.e. France.", &["See e.g. Paris or i.e. France."]);
        check("At 5 p.m. Tuesday we met.", &["At 5 p.m. Tuesday we met."]);
        check("We met at 5 p.m. The rain fell.", &["We met at 5 p.m.", "The rain fell."]);
        check("He lives in the U.S. Army base.", &["He lives in the U.S. Army base."]);
        check("He left the U.S. He was sad.", &["He left the U.S.", "He was sad."]);
        check("Apples, pears, etc. We ate.", &["Apples, pears, etc.", "We ate."]);
        check("\"Stop!\" she said. \"Why?\" He ran.", &["\"Stop!\" she said.", "\"Why?\"", "He ran."]);
        check("(It rained.) We stayed.", &["(It rained.)", "We stayed."]);
        check("1. First item", &["1. First item"]);
        check("The year was 1999. Then came 2000.", &["The year was 1999.", "Then came 2000."]);
        check("No. 5 is alive. No. Never.", &["No. 5 is alive.", "No. Never."]);
        check("See fig. 3 and vol. 2. End.", &["See fig. 3 and vol. 2.", "End."]);
        check("Visit example.com. It is good.", &["Visit example.com.", "It is good."]);
        check("Wait... what? Oh.", &["Wait... what?", "Oh."]);
        check("Wait... No.", &["Wait...", "No."]);
        check("It is new. iPhone users wait.", &["It is new.", "iPhone users wait."]);
        check("Acme Inc. Reported profits.", &["Acme Inc. Reported profits."]);
        check("今日は。いい天気。", &["今日は。", "いい天気。"]);
        check("नमस्ते। आप कैसे हैं?", &["नमस्ते।", "आप कैसे हैं?"]);
        check("...", &["..."]);
        check("  ", &[]);
    }
}
