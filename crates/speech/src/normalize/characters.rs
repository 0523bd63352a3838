//! Single characters: other spellings of a character, symbols with a name, and what nobody reads.

/// Names of symbols.
const NAMES: &[(char, &str)] = &[
    ('%', "percent"),
    ('&', "and"),
    ('@', "at"),
    ('+', "plus"),
    ('=', "equals"),
    ('<', "less than"),
    ('>', "greater than"),
    ('≤', "less than or equal to"),
    ('≥', "greater than or equal to"),
    ('≠', "not equal to"),
    ('≈', "approximately"),
    ('±', "plus or minus"),
    ('×', "times"),
    ('·', "times"),
    ('÷', "divided by"),
    ('√', "square root of"),
    ('∞', "infinity"),
    ('∑', "sum of"),
    ('∫', "integral of"),
    ('∂', "partial"),
    ('∈', "in"),
    ('§', "section"),
    ('¶', "paragraph"),
    ('©', "copyright"),
    ('°', "degrees"),
    ('→', "to"),
    ('⇒', "implies"),
    ('↔', "to"),
    ('/', "slash"),
    ('\\', "backslash"),
    ('^', "to the power of"),
    ('~', "about"),
    ('$', "dollars"),
    ('£', "pounds"),
    ('€', "euros"),
    ('¥', "yen"),
    ('₹', "rupees"),
    ('¢', "cents"),
    ('#', "hash"),
    ('²', "squared"),
    ('³', "cubed"),
    ('µ', "micro"),
    ('Ω', "ohms"),
    ('№', "number"),
    ('α', "alpha"),
    ('β', "beta"),
    ('γ', "gamma"),
    ('δ', "delta"),
    ('Δ', "delta"),
    ('ε', "epsilon"),
    ('θ', "theta"),
    ('λ', "lambda"),
    ('μ', "mu"),
    ('π', "pi"),
    ('Π', "pi"),
    ('ρ', "rho"),
    ('σ', "sigma"),
    ('Σ', "sigma"),
    ('τ', "tau"),
    ('φ', "phi"),
    ('Φ', "phi"),
    ('χ', "chi"),
    ('ψ', "psi"),
    ('ω', "omega"),
];

/// Fractions with a character of their own.
const FRACTIONS: &[(char, &str)] = &[
    ('½', "1/2"),
    ('⅓', "1/3"),
    ('⅔', "2/3"),
    ('¼', "1/4"),
    ('¾', "3/4"),
    ('⅕', "1/5"),
    ('⅖', "2/5"),
    ('⅗', "3/5"),
    ('⅘', "4/5"),
    ('⅙', "1/6"),
    ('⅚', "5/6"),
    ('⅛', "1/8"),
    ('⅜', "3/8"),
    ('⅝', "5/8"),
    ('⅞', "7/8"),
    ('⅒', "1/10"),
];

/// Operators of several characters.
const OPERATORS: &[(&str, &str)] = &[
    ("<=>", " is equivalent to "),
    ("<->", " to "),
    ("!=", " not equal to "),
    ("==", " equals "),
    (">=", " greater than or equal to "),
    ("<=", " less than or equal to "),
    ("->", " to "),
    ("=>", " to "),
    ("&&", " and "),
    ("||", " or "),
    ("::", " "),
    ("()", ""),
    ("[]", ""),
    ("{}", ""),
    ("--", " — "),
    ("w/o ", "without "),
    ("w/ ", "with "),
    ("and/or", "and or"),
];

/// Punctuation that a voice reads.
const PUNCTUATION: &str = ".,!?;:—…\"“”()'";

/// Replaces other spellings of a character, and drops characters that nobody reads, such as emoji.
pub(super) fn cleaned(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '‘' | '’' | '‛' | '`' | '´' | '′' => cleaned.push('\''),
            '„' | '«' | '‹' => cleaned.push('“'),
            '»' | '›' => cleaned.push('”'),
            '″' => cleaned.push('"'),
            '‐' | '‑' | '‒' | '−' | '﹣' => cleaned.push('-'),
            '―' => cleaned.push('—'),
            '⁄' | '∕' => cleaned.push('/'),
            '∗' | '⋅' => cleaned.push('×'),
            'Ω' => cleaned.push('Ω'),
            '。' => cleaned.push('.'),
            '、' => cleaned.push(','),
            '\u{ff01}'..='\u{ff5e}' => {
                cleaned.extend(char::from_u32(u32::from(c) - 0xfee0));
            }
            '™' | '®' | '•' | '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' => {}
            c if is_pictograph(c) || c.is_control() || c.is_whitespace() => cleaned.push(' '),
            c => match FRACTIONS.iter().find(|(fraction, _)| *fraction == c) {
                Some((_, fraction)) => {
                    if cleaned.ends_with(|c: char| c.is_ascii_digit()) {
                        cleaned.push(' ');
                    }
                    cleaned.push_str(fraction);
                }
                None => cleaned.push(c),
            },
        }
    }
    cleaned
}

fn is_pictograph(c: char) -> bool {
    matches!(c, '\u{1f000}'..='\u{1faff}' | '\u{2600}'..='\u{27bf}' | '\u{fe00}'..='\u{fe0f}' | '\u{2b00}'..='\u{2bff}' | '\u{e0000}'..='\u{e007f}')
}

/// Inserts spaces into texts without spaces that are longer than `limit` bytes.
pub(super) fn with_spaces(text: String, limit: usize) -> String {
    if text.split(' ').all(|word| word.len() <= limit) {
        return text;
    }
    let mut divided = String::with_capacity(text.len());
    let mut length = 0;
    for c in text.chars() {
        length = if c == ' ' { 0 } else { length + c.len_utf8() };
        if length > limit {
            divided.push(' ');
            length = c.len_utf8();
        }
        divided.push(c);
    }
    divided
}

/// Replaces symbols by their names. Afterwards, the text has only letters, punctuation and single spaces.
pub(super) fn spoken(text: &str) -> String {
    let mut text = text.to_owned();
    for (operator, words) in OPERATORS {
        if text.contains(operator) {
            text = text.replace(operator, words);
        }
    }

    let mut named = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut before2 = ' ';
    let mut before = ' ';
    while let Some(c) = chars.next() {
        let after = chars.peek().copied().unwrap_or(' ');
        match c {
            c if c.is_alphabetic() && (before.is_alphabetic() || after.is_alphabetic()) => named.push(c),
            // A file or a function, but not an abbreviation such as `U.S.`.
            '.' if before.is_alphabetic() && before2.is_alphabetic() && after.is_alphabetic() => {
                named.push_str(" dot ");
            }
            '*' if before == ' ' && after == ' ' => named.push_str("times"),
            '~' if after.is_alphabetic() => named.push_str("about "),
            '#' if after.is_alphabetic() => named.push_str("hashtag "),
            '-' | '–' if before.is_alphanumeric() && after.is_alphanumeric() => named.push('-'),
            '-' | '–' if before == ' ' && after == ' ' => named.push('—'),
            '[' | '{' => named.push('('),
            ']' | '}' => named.push(')'),
            '|' => named.push_str(", "),
            c if PUNCTUATION.contains(c) => named.push(c),
            c => match NAMES.iter().find(|(symbol, _)| *symbol == c) {
                Some((_, name)) => {
                    named.push(' ');
                    named.push_str(name);
                    named.push(' ');
                }
                None if c.is_alphabetic() => named.push(c),
                None => named.push(' '),
            },
        }
        before2 = before;
        before = c;
    }
    joined(&named)
}

/// Joins words by single spaces, without a space before punctuation.
fn joined(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        let is_closing = word.starts_with([',', '.', ';', ':', '!', '?', ')']);
        let is_attached = is_closing && joined.ends_with(char::is_alphabetic);
        if !(joined.is_empty() || is_attached) {
            joined.push(' ');
        }
        joined.push_str(word);
    }
    joined
}
