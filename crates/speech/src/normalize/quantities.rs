//! Numbers with their context: telephone numbers, versions, money, ranges, measures, fractions.

use super::{
    calendar::month_and_day,
    numbers::{cardinal, digits, number, ordinal, parse, plural, year},
    pattern::{Found, NUMBER, Pattern, any_of, pattern},
};

/// Currencies: symbol or code, unit, plural, hundredth, plural.
const CURRENCIES: &[(&str, [&str; 4])] = &[
    ("US$", ["dollar", "dollars", "cent", "cents"]),
    ("CA$", ["Canadian dollar", "Canadian dollars", "cent", "cents"]),
    ("C$", ["Canadian dollar", "Canadian dollars", "cent", "cents"]),
    ("A$", ["Australian dollar", "Australian dollars", "cent", "cents"]),
    ("AU$", ["Australian dollar", "Australian dollars", "cent", "cents"]),
    ("NZ$", ["New Zealand dollar", "New Zealand dollars", "cent", "cents"]),
    ("HK$", ["Hong Kong dollar", "Hong Kong dollars", "cent", "cents"]),
    ("$", ["dollar", "dollars", "cent", "cents"]),
    ("£", ["pound", "pounds", "penny", "pence"]),
    ("€", ["euro", "euros", "cent", "cents"]),
    ("¥", ["yen", "yen", "sen", "sen"]),
    ("₹", ["rupee", "rupees", "paisa", "paise"]),
    ("₩", ["won", "won", "jeon", "jeon"]),
    ("₽", ["ruble", "rubles", "kopeck", "kopecks"]),
    ("₺", ["lira", "lira", "kurus", "kurus"]),
    ("₫", ["dong", "dong", "hao", "hao"]),
    ("₱", ["peso", "pesos", "centavo", "centavos"]),
    ("₿", ["bitcoin", "bitcoins", "cent", "cents"]),
    ("USD", ["dollar", "dollars", "cent", "cents"]),
    ("EUR", ["euro", "euros", "cent", "cents"]),
    ("GBP", ["pound", "pounds", "penny", "pence"]),
    ("JPY", ["yen", "yen", "sen", "sen"]),
    ("CHF", ["Swiss franc", "Swiss francs", "centime", "centimes"]),
    ("CAD", ["Canadian dollar", "Canadian dollars", "cent", "cents"]),
    ("AUD", ["Australian dollar", "Australian dollars", "cent", "cents"]),
    ("INR", ["rupee", "rupees", "paisa", "paise"]),
    ("CNY", ["yuan", "yuan", "fen", "fen"]),
    ("RMB", ["yuan", "yuan", "fen", "fen"]),
    ("Rs.", ["rupee", "rupees", "paisa", "paise"]),
    ("Rs", ["rupee", "rupees", "paisa", "paise"]),
];

/// Units: symbol, singular, plural.
const UNITS: &[(&str, &str, &str)] = &[
    ("km", "kilometer", "kilometers"),
    ("cm", "centimeter", "centimeters"),
    ("mm", "millimeter", "millimeters"),
    ("dm", "decimeter", "decimeters"),
    ("µm", "micrometer", "micrometers"),
    ("μm", "micrometer", "micrometers"),
    ("nm", "nanometer", "nanometers"),
    ("mi", "mile", "miles"),
    ("ft", "foot", "feet"),
    ("yd", "yard", "yards"),
    ("yds", "yards", "yards"),
    ("kg", "kilogram", "kilograms"),
    ("mg", "milligram", "milligrams"),
    ("mcg", "microgram", "micrograms"),
    ("µg", "microgram", "micrograms"),
    ("μg", "microgram", "micrograms"),
    ("lb", "pound", "pounds"),
    ("lbs", "pounds", "pounds"),
    ("oz", "ounce", "ounces"),
    ("ml", "milliliter", "milliliters"),
    ("mL", "milliliter", "milliliters"),
    ("cl", "centiliter", "centiliters"),
    ("dl", "deciliter", "deciliters"),
    ("gal", "gallon", "gallons"),
    ("kph", "kilometer per hour", "kilometers per hour"),
    ("mph", "mile per hour", "miles per hour"),
    ("km/h", "kilometer per hour", "kilometers per hour"),
    ("m/s", "meter per second", "meters per second"),
    ("Hz", "hertz", "hertz"),
    ("kHz", "kilohertz", "kilohertz"),
    ("MHz", "megahertz", "megahertz"),
    ("GHz", "gigahertz", "gigahertz"),
    ("KB", "kilobyte", "kilobytes"),
    ("kB", "kilobyte", "kilobytes"),
    ("MB", "megabyte", "megabytes"),
    ("GB", "gigabyte", "gigabytes"),
    ("TB", "terabyte", "terabytes"),
    ("PB", "petabyte", "petabytes"),
    ("KiB", "kibibyte", "kibibytes"),
    ("MiB", "mebibyte", "mebibytes"),
    ("GiB", "gibibyte", "gibibytes"),
    ("kbps", "kilobit per second", "kilobits per second"),
    ("Mbps", "megabit per second", "megabits per second"),
    ("Gbps", "gigabit per second", "gigabits per second"),
    ("MB/s", "megabyte per second", "megabytes per second"),
    ("GB/s", "gigabyte per second", "gigabytes per second"),
    ("hr", "hour", "hours"),
    ("hrs", "hours", "hours"),
    ("min", "minute", "minutes"),
    ("mins", "minutes", "minutes"),
    ("sec", "second", "seconds"),
    ("secs", "seconds", "seconds"),
    ("ms", "millisecond", "milliseconds"),
    ("µs", "microsecond", "microseconds"),
    ("ns", "nanosecond", "nanoseconds"),
    ("yr", "year", "years"),
    ("yrs", "years", "years"),
    ("mo", "month", "months"),
    ("wk", "week", "weeks"),
    ("wks", "weeks", "weeks"),
    ("sq ft", "square foot", "square feet"),
    ("sq mi", "square mile", "square miles"),
    ("sq km", "square kilometer", "square kilometers"),
    ("m²", "square meter", "square meters"),
    ("km²", "square kilometer", "square kilometers"),
    ("cm²", "square centimeter", "square centimeters"),
    ("m³", "cubic meter", "cubic meters"),
    ("cm³", "cubic centimeter", "cubic centimeters"),
    ("cc", "cubic centimeter", "cubic centimeters"),
    ("ha", "hectare", "hectares"),
    ("kWh", "kilowatt hour", "kilowatt hours"),
    ("Wh", "watt hour", "watt hours"),
    ("mAh", "milliamp hour", "milliamp hours"),
    ("kW", "kilowatt", "kilowatts"),
    ("MW", "megawatt", "megawatts"),
    ("GW", "gigawatt", "gigawatts"),
    ("mW", "milliwatt", "milliwatts"),
    ("kV", "kilovolt", "kilovolts"),
    ("mV", "millivolt", "millivolts"),
    ("mA", "milliamp", "milliamps"),
    ("dB", "decibel", "decibels"),
    ("kPa", "kilopascal", "kilopascals"),
    ("hPa", "hectopascal", "hectopascals"),
    ("psi", "pound per square inch", "pounds per square inch"),
    ("kcal", "kilocalorie", "kilocalories"),
    ("cal", "calorie", "calories"),
    ("kJ", "kilojoule", "kilojoules"),
    ("fps", "frame per second", "frames per second"),
    ("rpm", "revolution per minute", "revolutions per minute"),
    ("RPM", "revolution per minute", "revolutions per minute"),
    ("bpm", "beat per minute", "beats per minute"),
    ("dpi", "dot per inch", "dots per inch"),
    ("px", "pixel", "pixels"),
    ("pct", "percent", "percent"),
    ("mmHg", "millimeter of mercury", "millimeters of mercury"),
    ("°C", "degree Celsius", "degrees Celsius"),
    ("°F", "degree Fahrenheit", "degrees Fahrenheit"),
    ("°", "degree", "degrees"),
    ("%", "percent", "percent"),
    ("‰", "per mille", "per mille"),
    ("¢", "cent", "cents"),
    ("Ω", "ohm", "ohms"),
    ("kΩ", "kiloohm", "kiloohms"),
];

/// Units of one letter, which are read as units only without a space before them.
const LETTER_UNITS: &[(&str, &str, &str)] = &[
    ("m", "meter", "meters"),
    ("g", "gram", "grams"),
    ("l", "liter", "liters"),
    ("L", "liter", "liters"),
    ("s", "second", "seconds"),
    ("h", "hour", "hours"),
    ("W", "watt", "watts"),
    ("V", "volt", "volts"),
    ("A", "amp", "amps"),
    ("K", "thousand", "thousand"),
    ("k", "thousand", "thousand"),
    ("M", "million", "million"),
    ("B", "billion", "billion"),
    ("x", "times", "times"),
    ("in", "inch", "inches"),
];

/// Words after a slash behind a quantity.
const PER: &[(&str, &str)] = &[
    ("h", "hour"),
    ("hr", "hour"),
    ("s", "second"),
    ("sec", "second"),
    ("min", "minute"),
    ("d", "day"),
    ("wk", "week"),
    ("mo", "month"),
    ("yr", "year"),
    ("kg", "kilogram"),
    ("g", "gram"),
    ("lb", "pound"),
    ("oz", "ounce"),
    ("L", "liter"),
    ("l", "liter"),
    ("m", "meter"),
    ("km", "kilometer"),
    ("mi", "mile"),
    ("sq ft", "square foot"),
    ("kWh", "kilowatt hour"),
    ("GB", "gigabyte"),
];

const SCALE: &str = "hundred|thousand|million|billion|trillion|bn|mn|[kKmMbB]";

pattern!(
    PHONE,
    r"(?:\+[0-9]{{1,3}}[ .-]?)?(?:\([0-9]{{3}}\) ?|[0-9]{{3}}[ .-])[0-9]{{3}}[ .-][0-9]{{4}}|[0-9]{{3}}-[0-9]{{4}}|[0-9]{{3}}-[0-9]{{2}}-[0-9]{{4}}|\+[0-9]{{1,3}}(?:[ -][0-9]{{2,5}}){{2,5}}"
);
pattern!(VERSION, r"\b([vV]\.? ?)?([0-9]+(?:\.[0-9]+){{1,4}})\b");
pattern!(
    MONEY,
    r"(-)?({symbols}) ?({NUMBER})(?: ?[-–—] ?(?:{symbols})? ?({NUMBER}))?(?:[ -]?({SCALE})\b)?(?:/([A-Za-z]+))?",
    symbols = any_of(CURRENCIES.iter().map(|(symbol, _)| *symbol))
);
pattern!(
    MONEY_AFTER,
    r"({NUMBER})(?: ({SCALE})\b)? ?(€|£|¥|₽|₺|₫|(?:USD|EUR|GBP|JPY|CHF|CAD|AUD|INR|CNY|RMB)\b)"
);
pattern!(RANGE, r"({NUMBER}) ?[-–—] ?({NUMBER})");
pattern!(SUBTRACTION, r"([0-9]) [-–] ([0-9])");
pattern!(DIMENSIONS, r"({NUMBER}) ?[x×] ?({NUMBER})(?: ?[x×] ?({NUMBER}))?");
pattern!(FEET, r#"([0-9]{{1,2}})' ?([0-9]{{1,2}})(?:"|'')?"#);
pattern!(
    MEASURE,
    r"([+-])?({NUMBER})[ -]?({units})(?:/([A-Za-z]+))?",
    units = any_of(UNITS.iter().map(|(symbol, ..)| *symbol))
);
pattern!(
    LETTER_MEASURE,
    r"([+-])?({NUMBER})({units})",
    units = any_of(LETTER_UNITS.iter().map(|(symbol, ..)| *symbol))
);
pattern!(SCIENTIFIC, r"({NUMBER}) ?(?:[eE]|[x×] ?10\^)([+-]?)([0-9]{{1,3}})");
pattern!(DIVISION, r"([0-9]) / ([0-9])");
pattern!(FRACTION, r"(?:([0-9]+) )?([0-9]{{1,4}})/([0-9]{{1,4}})");
pattern!(ORDINAL, r"([0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+)(st|nd|rd|th|ST|ND|RD|TH)\b");
pattern!(DECADE, r"'?([0-9]{{1,3}}0)'?s\b");
pattern!(RATIO, r"([0-9]{{1,3}}):([0-9]{{1,3}})");
pattern!(CITATION, r"\[[0-9]{{1,3}}(?:[,–-] ?[0-9]{{1,3}})*\]");
pattern!(COUNT, r"#([0-9])");
pattern!(ANY_NUMBER, r"([+-])?({NUMBER}|\.[0-9]+)");

/// Reads telephone numbers, addresses of hosts and versions. References to notes are not read.
pub(super) fn codes(text: String) -> String {
    let text = CITATION.replace(text, |_| Some(String::new()));
    let text = PHONE.replace(text, |found| {
        let is_whole = found.is_whole_number() && !matches!(found.before(), Some('-' | '$' | '£' | '€'));
        let is_whole = is_whole && found.after() != Some('-');
        let groups = found.group(0).split(|c: char| !c.is_ascii_digit()).filter(|group| !group.is_empty());
        let plus = if found.group(0).starts_with('+') { "plus " } else { "" };
        is_whole.then(|| format!("{plus}{}", groups.map(digits).collect::<Vec<_>>().join(", ")))
    });

    VERSION.replace(text, |found| {
        let parts: Vec<&str> = found.group(2).split('.').collect();
        let has_prefix = !found.group(1).is_empty();
        if !has_prefix && parts.len() < 3 || !found.is_separate() {
            return None;
        }
        let is_host = parts.len() == 4 && parts.iter().all(|part| parse(part).is_some_and(|part| part < 256));
        let words: Vec<String> =
            parts.iter().map(|part| if is_host { digits(part) } else { number(part) }).collect();
        let version = if has_prefix { "version " } else { "" };
        Some(version.to_owned() + &words.join(if is_host { " dot " } else { " point " }))
    })
}

/// Reads amounts of money.
pub(super) fn money(text: String) -> String {
    let text = MONEY.replace(text, |found| {
        let symbol = found.group(2);
        let is_code = symbol.starts_with(char::is_alphabetic);
        if is_code && found.before().is_some_and(char::is_alphanumeric) {
            return None;
        }
        let (_, units) = CURRENCIES.iter().find(|(known, _)| *known == symbol)?;
        let minus = if found.group(1).is_empty() { "" } else { "minus " };
        let scale = scale_name(found.group(5));
        let last = found.group(4);
        let mut words = minus.to_owned();
        if last.is_empty() {
            words.push_str(&amount(found.group(3), scale, units));
        } else {
            words.push_str(&format!("{} to {}", number(found.group(3)), amount(last, scale, units)));
        }
        if !found.group(6).is_empty() {
            words.push_str(&format!(" per {}", per(found.group(6))));
        }
        // A letter after the number would be part of a word.
        let is_cut = found.after().is_some_and(char::is_alphanumeric);
        (!is_cut).then_some(words)
    });

    MONEY_AFTER.replace(text, |found| {
        let (_, units) = CURRENCIES.iter().find(|(known, _)| *known == found.group(3))?;
        let is_cut = found.before().is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | ','));
        (!is_cut).then(|| amount(found.group(1), scale_name(found.group(2)), units))
    })
}

/// Reads an amount in a currency, with its hundredths.
fn amount(text: &str, scale: &str, [unit, units, cent, cents]: &[&str; 4]) -> String {
    if !scale.is_empty() {
        return format!("{} {scale} {units}", number(text));
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let hundredths = parse(fraction).filter(|_| fraction.len() == 2);
    match (parse(whole), hundredths) {
        (Some(whole), None) if fraction.is_empty() => named(whole, unit, units),
        (Some(whole), Some(0)) => named(whole, unit, units),
        (Some(0), Some(hundredths)) => named(hundredths, cent, cents),
        (Some(whole), Some(hundredths)) => {
            format!("{} and {}", named(whole, unit, units), named(hundredths, cent, cents))
        }
        _ => format!("{} {units}", number(text)),
    }
}

fn named(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", cardinal(count), if count == 1 { one } else { many })
}

fn scale_name(scale: &str) -> &str {
    match scale {
        "k" | "K" => "thousand",
        "m" | "M" | "mn" => "million",
        "b" | "B" | "bn" => "billion",
        scale => scale,
    }
}

fn per(unit: &str) -> &str {
    PER.iter().find(|(short, _)| *short == unit).map_or(unit, |(_, name)| name)
}

/// Reads the marks between two numbers. The numbers themselves are left for later steps.
pub(super) fn ranges(text: String) -> String {
    let is_equation = text.contains('=');
    let text = SUBTRACTION
        .replace(text, |found| is_equation.then(|| format!("{} minus {}", found.group(1), found.group(2))));
    let text = SCIENTIFIC.replace(text, |found| {
        let sign = if found.group(2) == "-" { "minus " } else { "" };
        let exponent = parse(found.group(3)).map(cardinal)?;
        found.is_separate().then(|| format!("{} times ten to the {sign}{exponent}", found.group(1)))
    });

    let text = DIMENSIONS.replace(text, |found| {
        let third = found.group(3);
        let third = if third.is_empty() { String::new() } else { format!(" by {third}") };
        let is_whole = !found.before().is_some_and(char::is_alphanumeric);
        let joint = if is_equation { "times" } else { "by" };
        is_whole.then(|| format!("{} {joint} {}{third}", found.group(1), found.group(2)))
    });

    let text = RATIO.replace(text, |found| {
        found.is_whole_number().then(|| format!("{} to {}", found.group(1), found.group(2)))
    });

    RANGE.replace(text, |found| {
        let is_joined = |c: char| c.is_alphanumeric() || matches!(c, '-' | '–' | '/' | '.' | '^');
        let is_range = !found.before().is_some_and(is_joined) && found.after() != Some('-');
        is_range.then(|| format!("{} to {}", found.group(1), found.group(2)))
    })
}

/// Reads numbers with a unit, and decades.
pub(super) fn measures(text: String) -> String {
    let text = DECADE.replace(text, |found| {
        let value = parse(found.group(1))?;
        let words = if is_year(found.group(1)) { year(value) } else { cardinal(value) };
        let is_cut = found.before().is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | ','));
        (!is_cut).then(|| plural(&words))
    });

    let text = FEET.replace(text, |found| {
        let feet = parse(found.group(1))?;
        let inches = parse(found.group(2)).filter(|inches| *inches < 12)?;
        found.is_whole_number().then(|| {
            format!("{} {} {}", cardinal(feet), if feet == 1 { "foot" } else { "feet" }, cardinal(inches))
        })
    });

    let text = MEASURE.replace(text, |found| measure(found, UNITS));
    LETTER_MEASURE.replace(text, |found| measure(found, LETTER_UNITS))
}

fn measure(found: &Found<'_>, units: &[(&str, &str, &str)]) -> Option<String> {
    let count = found.group(2);
    let (symbol, one, many) = units.iter().find(|(symbol, ..)| *symbol == found.group(3))?;
    let before = found.before();
    let has_sign = !found.group(1).is_empty();
    let is_cut = match before {
        Some(c) if has_sign => matches!(c, '.' | ',' | '_'),
        Some(c) => c.is_alphanumeric() || matches!(c, '.' | ',' | '_'),
        None => false,
    };
    // Letters after the unit would be the rest of a word.
    let is_word = symbol.ends_with(char::is_alphabetic);
    let continues = found.after().is_some_and(|c| c.is_alphanumeric() || c == '_') && is_word;
    if is_cut || continues {
        return None;
    }

    let is_one = matches!(count, "1" | "1.0");
    // In `a 5-mile run`, the unit is part of an adjective.
    let is_adjective = found.group(0).contains(&format!("{count}-"));
    let unit = if is_one || is_adjective { one } else { many };
    let rate = found.group(4);
    let rate = if rate.is_empty() { String::new() } else { format!(" per {}", per(rate)) };
    Some(format!("{}{} {unit}{rate}", sign(found.group(1), before), number(count)))
}

/// Returns the reading of the sign before a number, given the character before it. After a word, it is a hyphen.
fn sign(sign: &str, before: Option<char>) -> &'static str {
    match (sign, before.is_some_and(char::is_alphanumeric)) {
        ("", _) => "",
        ("-", false) => "minus ",
        ("+", false) => "plus ",
        ("+", true) => " plus ",
        _ => " ",
    }
}

/// Reads fractions, and days such as `10/12`.
pub(super) fn fractions(text: String) -> String {
    let text =
        DIVISION.replace(text, |found| Some(format!("{} divided by {}", found.group(1), found.group(2))));
    FRACTION.replace(text, |found| {
        let whole = found.group(1);
        let upper = parse(found.group(2))?;
        let lower = parse(found.group(3))?;
        if !found.is_whole_number() || found.after() == Some('/') || found.before() == Some('/') {
            return None;
        }
        let is_fraction =
            upper > 0 && upper < lower && (lower <= 10 || matches!(lower, 12 | 16 | 20 | 32 | 64 | 100));
        let reading = if is_fraction {
            fraction(upper, lower)
        } else if let Some(date) = month_and_day(upper, lower).filter(|_| whole.is_empty() && upper != lower)
        {
            date
        } else if upper == lower || upper + lower == 100 {
            format!("{} {}", cardinal(upper), cardinal(lower))
        } else {
            format!("{} over {}", cardinal(upper), cardinal(lower))
        };
        Some(match (whole, is_fraction) {
            ("", _) => reading,
            (whole, true) => format!("{} and {reading}", number(whole)),
            (whole, false) => format!("{} {reading}", number(whole)),
        })
    })
}

fn fraction(upper: u64, lower: u64) -> String {
    let count = if upper == 1 { "one".to_owned() } else { cardinal(upper) };
    match (upper, lower) {
        (1, 2) => "one half".to_owned(),
        (_, 2) => format!("{count} halves"),
        (1, 4) => "one quarter".to_owned(),
        (_, 4) => format!("{count} quarters"),
        (1, _) => format!("{count} {}", ordinal(lower)),
        _ => format!("{count} {}", plural(&ordinal(lower))),
    }
}

/// Reads the numbers that are left. Numbers of four digits without a comma are read as years.
pub(super) fn numbers(text: String) -> String {
    let text = COUNT.replace(text, |found| Some(format!("number {}", found.group(1))));
    let text = ORDINAL.replace(text, |found| {
        let value = parse(found.group(1)).map(ordinal)?;
        let is_cut = found.before().is_some_and(|c| c.is_alphanumeric() || c == '.');
        (!is_cut).then_some(value)
    });

    ANY_NUMBER.replace(text, |found| {
        let before = found.before();
        let is_after_word = before.is_some_and(char::is_alphanumeric);
        let count = found.group(2);
        let sign = sign(found.group(1), before);
        let words = match parse(count).filter(|_| is_year(count)) {
            Some(value) => year(value),
            None => number(count),
        };
        let start = if is_after_word && sign.is_empty() { " " } else { "" };
        let end = if found.after().is_some_and(char::is_alphanumeric) { " " } else { "" };
        Some(format!("{start}{sign}{words}{end}"))
    })
}

/// Returns true for four digits that are probably a year.
fn is_year(text: &str) -> bool {
    text.len() == 4
        && parse(text).is_some_and(|value| (1100..2100).contains(&value))
        && !text.contains(['.', ','])
}

#[cfg(test)]
pub(super) fn check_patterns() {
    let patterns = [
        &PHONE,
        &VERSION,
        &MONEY,
        &MONEY_AFTER,
        &RANGE,
        &SUBTRACTION,
        &DIMENSIONS,
        &FEET,
        &MEASURE,
        &LETTER_MEASURE,
        &SCIENTIFIC,
        &DIVISION,
        &FRACTION,
        &ORDINAL,
        &DECADE,
        &RATIO,
        &CITATION,
        &COUNT,
        &ANY_NUMBER,
    ];
    patterns.into_iter().for_each(Pattern::check);
}
