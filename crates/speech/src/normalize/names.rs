//! Abbreviations, titles and Roman numerals.

use super::{
    numbers::{cardinal, ordinal, roman},
    pattern::{Pattern, any_of, pattern},
};

/// Abbreviations and their readings.
const ABBREVIATIONS: &[(&str, &str)] = &[
    ("Mr.", "Mister"),
    ("Mrs.", "Missus"),
    ("Ms.", "Miz"),
    ("Messrs.", "Messrs"),
    ("Jr.", "Junior"),
    ("Sr.", "Senior"),
    ("Mt.", "Mount"),
    ("Ft.", "Fort"),
    ("Ave.", "Avenue"),
    ("Blvd.", "Boulevard"),
    ("Rd.", "Road"),
    ("Ln.", "Lane"),
    ("Hwy.", "Highway"),
    ("Pkwy.", "Parkway"),
    ("Apt.", "Apartment"),
    ("Bldg.", "Building"),
    ("Ltd.", "Limited"),
    ("Inc.", "Incorporated"),
    ("Corp.", "Corporation"),
    ("Co.", "Company"),
    ("Bros.", "Brothers"),
    ("Dept.", "Department"),
    ("dept.", "department"),
    ("Univ.", "University"),
    ("Assn.", "Association"),
    ("Govt.", "Government"),
    ("govt.", "government"),
    ("Intl.", "International"),
    ("approx.", "approximately"),
    ("est.", "established"),
    ("vs.", "versus"),
    ("vs", "versus"),
    ("v.", "versus"),
    ("vol.", "volume"),
    ("Vol.", "Volume"),
    ("fig.", "figure"),
    ("Fig.", "Figure"),
    ("figs.", "figures"),
    ("Figs.", "Figures"),
    ("ch.", "chapter"),
    ("Ch.", "Chapter"),
    ("sec.", "section"),
    ("Sec.", "Section"),
    ("eq.", "equation"),
    ("Eq.", "Equation"),
    ("eds.", "editors"),
    ("Prof.", "Professor"),
    ("Gen.", "General"),
    ("Gov.", "Governor"),
    ("Sen.", "Senator"),
    ("Rep.", "Representative"),
    ("Capt.", "Captain"),
    ("Lt.", "Lieutenant"),
    ("Col.", "Colonel"),
    ("Sgt.", "Sergeant"),
    ("Rev.", "Reverend"),
    ("Hon.", "Honorable"),
    ("Pres.", "President"),
    ("Maj.", "Major"),
    ("Adm.", "Admiral"),
    ("Cpl.", "Corporal"),
    ("Cmdr.", "Commander"),
    ("Atty.", "Attorney"),
    ("Supt.", "Superintendent"),
    ("cf.", "compare"),
    ("e.g.", "for example"),
    ("eg.", "for example"),
    ("i.e.", "that is"),
    ("ie.", "that is"),
    ("E.g.", "For example"),
    ("I.e.", "That is"),
    ("etc.", "et cetera"),
    ("etc", "et cetera"),
    ("et al.", "and others"),
    ("et al", "and others"),
    ("viz.", "namely"),
    ("ca.", "circa"),
    ("incl.", "including"),
    ("esp.", "especially"),
    ("misc.", "miscellaneous"),
    ("max.", "maximum"),
    ("avg.", "average"),
    ("temp.", "temperature"),
    ("ref.", "reference"),
    ("pp.", "pages"),
    ("P.S.", "postscript"),
    ("Jan.", "January"),
    ("Feb.", "February"),
    ("Mar.", "March"),
    ("Apr.", "April"),
    ("Jun.", "June"),
    ("Jul.", "July"),
    ("Aug.", "August"),
    ("Sept.", "September"),
    ("Sep.", "September"),
    ("Oct.", "October"),
    ("Nov.", "November"),
    ("Dec.", "December"),
    ("Mon.", "Monday"),
    ("Tue.", "Tuesday"),
    ("Tues.", "Tuesday"),
    ("Wed.", "Wednesday"),
    ("Thu.", "Thursday"),
    ("Thurs.", "Thursday"),
    ("Fri.", "Friday"),
    ("w/o", "without"),
    ("w/", "with"),
    ("c/o", "care of"),
    ("24/7", "twenty four seven"),
    ("9/11", "nine eleven"),
    ("aka", "also known as"),
    ("a.k.a.", "also known as"),
    ("Ph.D.", "P.H.D."),
    ("Ph.D", "P.H.D."),
    ("PhD", "P.H.D."),
    ("PhDs", "P.H.D.s"),
    ("C#", "C sharp"),
    ("F#", "F sharp"),
    (".NET", "dot net"),
    ("TBD", "to be determined"),
    ("FYI", "for your information"),
    ("BTW", "by the way"),
    ("IMO", "in my opinion"),
    ("ASAP", "as soon as possible"),
    ("Wi-Fi", "wifi"),
];

/// Words after which a Roman numeral is a cardinal number.
const BEFORE_CARDINALS: &[&str] = &[
    "Chapter",
    "chapter",
    "Part",
    "part",
    "Act",
    "act",
    "Scene",
    "scene",
    "Section",
    "section",
    "Volume",
    "volume",
    "Book",
    "book",
    "Phase",
    "phase",
    "Article",
    "article",
    "Appendix",
    "appendix",
    "Table",
    "table",
    "Figure",
    "figure",
    "World War",
    "Mark",
    "Type",
    "type",
    "Level",
    "level",
    "Stage",
    "stage",
    "Class",
    "class",
    "Grade",
    "grade",
    "Title",
    "Schedule",
    "Super Bowl",
    "Apollo",
    "Gemini",
    "Final Fantasy",
    "Episode",
    "Round",
    "round",
    "Rocky",
    "Union",
    "Windows",
    "Vatican",
];

/// Names of rulers and popes, after which a Roman numeral is an ordinal number.
const BEFORE_ORDINALS: &[&str] = &[
    "Pope",
    "King",
    "Queen",
    "Henry",
    "Louis",
    "Edward",
    "George",
    "William",
    "Charles",
    "James",
    "Richard",
    "Elizabeth",
    "Napoleon",
    "Pius",
    "Benedict",
    "Leo",
    "Paul",
    "Ramses",
    "Frederick",
    "Philip",
    "Alexander",
    "Nicholas",
    "Peter",
    "Catherine",
    "Ivan",
    "Umberto",
    "Emmanuel",
    "Gustav",
    "Christian",
    "Ferdinand",
    "Francis",
    "Innocent",
    "Gregory",
    "Clement",
    "Urban",
    "Mary",
    "Margaret",
    "Wilhelm",
    "Otto",
    "Leopold",
    "Albert",
    "Alfonso",
    "Felipe",
    "Carlos",
    "Juan Carlos",
    "Haakon",
    "Olaf",
    "Harald",
    "Rama",
    "Mehmed",
    "Murad",
    "Selim",
    "Darius",
    "Xerxes",
    "Ptolemy",
    "Cleopatra",
    "Theodosius",
    "Constantine",
];

/// Words that follow the number of a ruler rather than the pronoun.
const AFTER_RULERS: &[&str] = &["of", "was", "reigned", "ruled", "died", "became", "and", "in", "to", "who"];

pattern!(DOTLESS_TITLE, r"\b(Mr|Mrs|Ms|Prof|Gen|Gov|Sen|Capt|Lt|Col|Sgt|Rev|Mt|Ft) ");
pattern!(DOCTOR, r"\bDr\b\.?");
pattern!(SAINT, r"\bSt\b\.?");
pattern!(ABBREVIATION, "(?:{})", any_of(ABBREVIATIONS.iter().map(|(short, _)| *short)));
pattern!(NUMBER_SIGN, r"\b([Nn]o|[Nn]os)\. ?([0-9])");
pattern!(PAGE, r"\b(p)\. ?([0-9])");
pattern!(CARDINAL, "\\b({}) ([IVXLCDM]+)\\b", any_of(BEFORE_CARDINALS.iter().copied()));
pattern!(ORDINAL, "\\b({}) ([IVXLCDM]+)\\b", any_of(BEFORE_ORDINALS.iter().copied()));
pattern!(AFTER_NAME, r"\b([A-Z][a-z]+) (I[IVX]+|V[IV]+|X[IVX]+)\b");

/// Reads abbreviations and titles as words.
pub(super) fn abbreviations(text: String) -> String {
    let text = DOCTOR.replace(text, |found| {
        let is_drive = is_after_street_name(found.text_before()) && !is_before_name(found.rest());
        found
            .is_separate()
            .then(|| with_end(if is_drive { "Drive" } else { "Doctor" }, found.group(0), found.rest()))
    });

    let text = SAINT.replace(text, |found| {
        let is_street = is_after_street_name(found.text_before()) || !is_before_name(found.rest());
        found
            .is_separate()
            .then(|| with_end(if is_street { "Street" } else { "Saint" }, found.group(0), found.rest()))
    });

    let text = DOTLESS_TITLE.replace(text, |found| {
        let title = format!("{}.", found.group(1));
        let (_, reading) = ABBREVIATIONS.iter().find(|(short, _)| *short == title)?;
        found.rest().starts_with(char::is_uppercase).then(|| format!("{reading} "))
    });

    let text = NUMBER_SIGN.replace(text, |found| {
        let plural = if found.group(1).ends_with('s') { "s" } else { "" };
        let word = if found.group(1).starts_with('N') { "Number" } else { "number" };
        Some(format!("{word}{plural} {}", found.group(2)))
    });

    let text = PAGE.replace(text, |found| Some(format!("page {}", found.group(2))));
    ABBREVIATION.replace(text, |found| {
        let short = found.group(0);
        let (_, reading) = ABBREVIATIONS.iter().find(|(known, _)| *known == short)?;
        let is_inside = found.before().is_some_and(|c| c.is_alphanumeric() || c == '.' || c == '/')
            || found.after().is_some_and(|c| c.is_alphanumeric() || c == '/')
            // `v.` and `est.` are also the ends of sentences.
            || matches!(short, "v." | "est." | "sec." | "max." | "temp." | "ref.") && found.rest().is_empty();
        (!is_inside).then(|| with_end(reading, short, found.rest()))
    })
}

/// Returns the reading of an abbreviation, whose dot may also end the sentence.
fn with_end(reading: &str, short: &str, rest: &str) -> String {
    let ends = short.ends_with('.')
        && rest.trim_start_matches(['"', '\'', '”', ')']).is_empty()
        && !reading.ends_with('.');
    format!("{reading}{}", if ends { "." } else { "" })
}

fn is_before_name(rest: &str) -> bool {
    rest.trim_start().starts_with(char::is_uppercase)
}

/// Returns true if the text ends in a capitalised word after a number, or in a numbered street.
fn is_after_street_name(text: &str) -> bool {
    let mut words = text.split_whitespace().rev();
    match (words.next(), words.next(), words.next()) {
        (Some(last), ..) if is_number(last) => last.ends_with(char::is_alphabetic),
        (Some(last), Some(before), _) if is_name(last) && is_number(before) => true,
        (Some(last), Some(middle), Some(before)) => is_name(last) && is_name(middle) && is_number(before),
        _ => false,
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(char::is_uppercase) && !word.ends_with([',', '.', ':', ';'])
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

/// Reads Roman numerals after words that are followed by one.
pub(super) fn roman_numerals(text: String) -> String {
    if !text.contains(['I', 'V', 'X', 'L', 'C', 'D', 'M']) {
        return text;
    }
    let text = CARDINAL.replace(text, |found| {
        let value = roman(found.group(2)).filter(|value| *value < 200)?;
        let is_numeral = found.is_separate() && !is_pronoun(found.group(2), found.rest());
        is_numeral.then(|| format!("{} {}", found.group(1), cardinal(value)))
    });

    let text = ORDINAL.replace(text, |found| {
        let value = roman(found.group(2)).filter(|value| *value < 50)?;
        let is_numeral = found.is_separate() && !is_pronoun(found.group(2), found.rest());
        is_numeral.then(|| format!("{} the {}", found.group(1), ordinal(value)))
    });

    AFTER_NAME.replace(text, |found| {
        let value = roman(found.group(2)).filter(|value| *value < 40)?;
        found.is_separate().then(|| format!("{} {}", found.group(1), cardinal(value)))
    })
}

/// Returns true if the numeral is the word `I`, which a verb follows.
fn is_pronoun(numeral: &str, rest: &str) -> bool {
    let is_contraction = rest.starts_with('\'') && !rest.starts_with("'s");
    let next = rest.strip_prefix(' ').and_then(|rest| rest.split_whitespace().next()).unwrap_or_default();
    let next = next.trim_end_matches(|c: char| !c.is_alphabetic());
    let is_verb = next.starts_with(char::is_lowercase) && !AFTER_RULERS.contains(&next);
    numeral == "I" && (is_contraction || is_verb)
}

#[cfg(test)]
pub(super) fn check_patterns() {
    let patterns = [
        &DOTLESS_TITLE,
        &DOCTOR,
        &SAINT,
        &ABBREVIATION,
        &NUMBER_SIGN,
        &PAGE,
        &CARDINAL,
        &ORDINAL,
        &AFTER_NAME,
    ];
    patterns.into_iter().for_each(Pattern::check);
}
