//! Numbers as English words. Words are separated by single spaces, without hyphens and without `and`.

const ONES: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] =
    ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const SCALES: [&str; 7] = ["", "thousand", "million", "billion", "trillion", "quadrillion", "quintillion"];

/// Maximum number of digits that are read as one number. Longer ones are read digit by digit.
const MAX_DIGITS: usize = 18;

/// Returns a cardinal number, such as `one thousand two hundred thirty four`.
pub(super) fn cardinal(number: u64) -> String {
    if number == 0 {
        return ONES[0].to_owned();
    }

    let mut words = Vec::new();
    for (index, scale) in SCALES.iter().enumerate().rev() {
        let group = (number / 1000u64.pow(index as u32)) % 1000;
        if group == 0 {
            continue;
        }
        if group >= 100 {
            words.extend([ONES[(group / 100) as usize], "hundred"]);
        }
        let rest = group % 100;
        if rest >= 20 {
            words.push(TENS[(rest / 10) as usize]);
        }
        let ones = if rest >= 20 { rest % 10 } else { rest };
        if ones > 0 {
            words.push(ONES[ones as usize]);
        }
        if !scale.is_empty() {
            words.push(scale);
        }
    }
    words.join(" ")
}

/// Returns an ordinal number, such as `twenty third`.
pub(super) fn ordinal(number: u64) -> String {
    with_last_word(&cardinal(number), |last| match last {
        "one" => "first".to_owned(),
        "two" => "second".to_owned(),
        "three" => "third".to_owned(),
        "five" => "fifth".to_owned(),
        "eight" => "eighth".to_owned(),
        "nine" => "ninth".to_owned(),
        "twelve" => "twelfth".to_owned(),
        last => match last.strip_suffix('y') {
            Some(stem) => format!("{stem}ieth"),
            None => format!("{last}th"),
        },
    })
}

/// Returns the plural of a number's words, such as `nineties` or `sixes`.
pub(super) fn plural(words: &str) -> String {
    with_last_word(words, |last| match last.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if last.ends_with('x') => format!("{last}es"),
        None => format!("{last}s"),
    })
}

/// Returns a year, such as `nineteen eighty four`, `nineteen oh five`, `two thousand five`.
pub(super) fn year(number: u64) -> String {
    let high = number / 100;
    let low = number % 100;
    if high == 0 || high >= 100 || high.is_multiple_of(10) && low < 10 {
        return cardinal(number);
    }
    match low {
        0 => format!("{} hundred", cardinal(high)),
        1..10 => format!("{} oh {}", cardinal(high), cardinal(low)),
        _ => format!("{} {}", cardinal(high), cardinal(low)),
    }
}

/// Returns the digits of a text, one by one. Other characters are left out.
pub(super) fn digits(text: &str) -> String {
    let digits = text.chars().filter_map(|c| c.to_digit(10)).map(|digit| ONES[digit as usize]);
    digits.collect::<Vec<_>>().join(" ")
}

/// Parses an integer with or without commas; `None` if it is too long to be read as a number.
pub(super) fn parse(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if digits.len() > MAX_DIGITS { None } else { digits.parse().ok() }
}

/// Returns a decimal number with or without commas, such as `three point one four`. Numbers with leading zeros and very
/// long ones are read digit by digit.
pub(super) fn number(text: &str) -> String {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let has_leading_zero = whole.len() > 1 && whole.starts_with('0');
    let mut words = match parse(whole).filter(|_| !has_leading_zero) {
        Some(value) => cardinal(value),
        None => digits(whole),
    };
    if !fraction.is_empty() {
        words.push_str(" point ");
        words.push_str(&digits(fraction));
    }
    words.trim_start().to_owned()
}

/// Returns the value of a Roman numeral in its usual notation.
pub(super) fn roman(text: &str) -> Option<u64> {
    const PARTS: [(&str, u64); 13] = [
        ("M", 1000),
        ("CM", 900),
        ("D", 500),
        ("CD", 400),
        ("C", 100),
        ("XC", 90),
        ("L", 50),
        ("XL", 40),
        ("X", 10),
        ("IX", 9),
        ("V", 5),
        ("IV", 4),
        ("I", 1),
    ];
    let mut rest = text;
    let mut value = 0;
    for (part, worth) in PARTS {
        while let Some(after) = rest.strip_prefix(part) {
            rest = after;
            value += worth;
        }
    }

    // A value has one usual notation.
    let mut left = value;
    let notation: String = PARTS
        .iter()
        .map(|(part, worth)| {
            let count = left / worth;
            left %= worth;
            part.repeat(count as usize)
        })
        .collect();
    (value > 0 && notation == text).then_some(value)
}

fn with_last_word(words: &str, change: impl FnOnce(&str) -> String) -> String {
    match words.rsplit_once(' ') {
        Some((start, last)) => format!("{start} {}", change(last)),
        None => change(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_words() {
        let check = |found: String, expect: &str| assert_eq!(found, expect);
        check(cardinal(0), "zero");
        check(cardinal(1_234_567), "one million two hundred thirty four thousand five hundred sixty seven");
        check(cardinal(1_000_000_013), "one billion thirteen");
        check(ordinal(23), "twenty third");
        check(ordinal(1000), "one thousandth");
        check(ordinal(40), "fortieth");
        check(plural("nineteen ninety"), "nineteen nineties");
        check(plural("six"), "sixes");
        check(year(1905), "nineteen oh five");
        check(year(1900), "nineteen hundred");
        check(year(2005), "two thousand five");
        check(year(2024), "twenty twenty four");
        check(number("3.14"), "three point one four");
        check(number("1,250.50"), "one thousand two hundred fifty point five zero");
        check(number("007"), "zero zero seven");
        check(number(".5"), "point five");
        check(number("1234567890123456789"), &digits("1234567890123456789"));
        for (text, value) in [("XIV", 14), ("MCMXCIX", 1999), ("VIII", 8), ("XL", 40)] {
            assert_eq!(roman(text), Some(value), "{text}");
        }
        for text in ["IIII", "VX", "", "IC", "ABC", "XIVI"] {
            assert_eq!(roman(text), None, "{text}");
        }
    }
}
