//! Dates and times of day.

use super::{
    numbers::{cardinal, ordinal, parse, year},
    pattern::{Pattern, pattern},
};
use crate::english::Accent;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Names of months and their abbreviations, as a regular expression.
const MONTH: &str = "January|February|March|April|May|June|July|August|September|October|November|December|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec";

pattern!(
    ISO_DATE,
    r"([0-9]{{4}})-([0-9]{{2}})-([0-9]{{2}})(?:[T ]([0-9]{{2}}:[0-9]{{2}})(?::[0-9]{{2}})?(?:\.[0-9]+)?(Z)?)?"
);
pattern!(SLASH_DATE, r"([0-9]{{1,2}})/([0-9]{{1,2}})/([0-9]{{4}}|[0-9]{{2}})");
pattern!(DOT_DATE, r"([0-9]{{1,2}})\.([0-9]{{1,2}})\.([0-9]{{4}})");
pattern!(MONTH_DAYS, r"\b({MONTH})\.? ([0-9]{{1,2}}) ?[-–—] ?([0-9]{{1,2}})(?:,? ([0-9]{{4}}))?");
pattern!(MONTH_DAY, r"\b({MONTH})\.? ([0-9]{{1,2}})(?:st|nd|rd|th)?(,? [0-9]{{4}})?");
pattern!(
    DAY_MONTH,
    r"(?:\b([Tt]he) )?\b([0-9]{{1,2}})(?:st|nd|rd|th)?(?: of)? ({MONTH})\b\.?(,? [0-9]{{4}})?"
);
pattern!(CLOCK, r"([0-9]{{1,2}}):([0-9]{{2}})(?::([0-9]{{2}}))?(?: ?([AaPp])\.?[Mm]\b\.?)?");
pattern!(HOUR, r"([0-9]{{1,2}}) ?([AaPp])\.?[Mm]\b\.?");
pattern!(HOURS, r"([0-9]{{1,2}}(?::[0-9]{{2}})?) ?[-–—] ?([0-9]{{1,2}}(?::[0-9]{{2}})?) ?([AaPp]\.?[Mm]\b)");

/// Reads dates as words. A date of three numbers has the order of the accent.
pub(super) fn dates(text: String, accent: Accent) -> String {
    let text = ISO_DATE.replace(text, |found| {
        let date = date(number(found.group(2))?, number(found.group(3))?, Some(found.group(1)))?;
        let time = found.group(4);
        let zone = if found.group(5).is_empty() { "" } else { " U.T.C." };
        let at = if time.is_empty() { String::new() } else { format!(" at {time}{zone}") };
        found.is_separate().then(|| date + &at)
    });

    let text = SLASH_DATE.replace(text, |found| {
        let numbers = [number(found.group(1))?, number(found.group(2))?];
        let is_american = accent == Accent::American;
        let [first, second] = numbers;
        let is_month_first = if is_american { first <= 12 } else { second > 12 };
        let [month, day] = if is_month_first { [first, second] } else { [second, first] };
        let short = found.group(3);
        let century = if short > "30" { "19" } else { "20" };
        let year = if short.len() == 2 { format!("{century}{short}") } else { short.to_owned() };
        let date = date(month, day, Some(&year))?;
        found.is_whole_number().then_some(date)
    });

    let text = DOT_DATE.replace(text, |found| {
        let date = date(number(found.group(2))?, number(found.group(1))?, Some(found.group(3)))?;
        found.is_whole_number().then_some(date)
    });

    let text = MONTH_DAYS.replace(text, |found| {
        let first = day(found.group(2))?;
        let last = day(found.group(3))?;
        let month = month_name(found.group(1))?;
        found.is_separate().then(|| format!("{month} {first} to {last}{}", year_after(found.group(4))))
    });

    let text = MONTH_DAY.replace(text, |found| {
        let day = day(found.group(2))?;
        let month = month_name(found.group(1))?;
        let is_time = found.after() == Some(':') || found.after() == Some('%');
        let is_date = found.is_separate() && !is_time;
        is_date.then(|| format!("{month} {day}{}", year_after(found.group(3))))
    });

    DAY_MONTH.replace(text, |found| {
        let day = day(found.group(2))?;
        let month = month_name(found.group(3))?;
        // The dot of `5 Jan.` may also end the sentence.
        let ends = found.rest().is_empty() && found.group(0).ends_with('.');
        let end = if ends { "." } else { "" };
        let article = if found.group(1).starts_with('T') { "The" } else { "the" };
        let is_date = found.is_separate() && !found.text_before().ends_with(['.', ',', '$', '£', '€']);
        is_date.then(|| format!("{article} {day} of {month}{}{end}", year_after(found.group(4))))
    })
}

/// Reads times of day as words.
pub(super) fn times(text: String) -> String {
    let text = HOURS.replace(text, |found| {
        let half = found.group(3);
        found.is_separate().then(|| format!("{} {half} to {} {half}", found.group(1), found.group(2)))
    });

    let text = CLOCK.replace(text, |found| {
        let hour = number(found.group(1)).filter(|hour| *hour <= 24)?;
        let minute = number(found.group(2)).filter(|minute| *minute < 60)?;
        let second = found.group(3);
        let half = found.group(4);
        let mut words = cardinal(hour);
        match minute {
            0 if half.is_empty() && second.is_empty() => words.push_str(" o'clock"),
            0 => {}
            1..10 => words.push_str(&format!(" oh {}", cardinal(minute))),
            _ => words.push_str(&format!(" {}", cardinal(minute))),
        }
        if !second.is_empty() {
            let second = number(second).filter(|second| *second < 60)?;
            let unit = if second == 1 { "second" } else { "seconds" };
            words.push_str(&format!(" and {} {unit}", cardinal(second)));
        }
        found.is_whole_number().then(|| words + &half_of_day(half))
    });

    HOUR.replace(text, |found| {
        let hour = number(found.group(1)).filter(|hour| (1..=12).contains(hour))?;
        found.is_whole_number().then(|| cardinal(hour) + &half_of_day(found.group(2)))
    })
}

/// Returns the letters of `a.m.` and `p.m.`, in the form that is spelled.
fn half_of_day(letter: &str) -> String {
    if letter.is_empty() { String::new() } else { format!(" {}.M.", letter.to_uppercase()) }
}

fn number(text: &str) -> Option<u64> {
    parse(text)
}

fn day(text: &str) -> Option<String> {
    number(text).filter(|day| (1..=31).contains(day)).map(ordinal)
}

fn date(month: u64, day: u64, year: Option<&str>) -> Option<String> {
    let month = MONTHS.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    let day = Some(day).filter(|day| (1..=31).contains(day)).map(ordinal)?;
    Some(format!("{month} {day}{}", year_after(year.unwrap_or_default())))
}

/// Returns a year after a day.
fn year_after(text: &str) -> String {
    match number(text).filter(|_| !text.is_empty()) {
        Some(number) => format!(", {}", year(number)),
        None => String::new(),
    }
}

/// Returns the name of a month, given its name or abbreviation.
fn month_name(text: &str) -> Option<&'static str> {
    let beginning = text.get(..3)?;
    MONTHS.into_iter().find(|month| month.starts_with(beginning))
}

/// Returns a date without a year, in words.
pub(super) fn month_and_day(month: u64, day: u64) -> Option<String> {
    date(month, day, None)
}

#[cfg(test)]
pub(super) fn check_patterns() {
    let patterns =
        [&ISO_DATE, &SLASH_DATE, &DOT_DATE, &MONTH_DAYS, &MONTH_DAY, &DAY_MONTH, &CLOCK, &HOUR, &HOURS];
    patterns.into_iter().for_each(Pattern::check);
}
