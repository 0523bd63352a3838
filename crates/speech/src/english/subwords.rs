//! Subwords: a token is divided at hyphens, apostrophes and changes of case, as in `iPhone` or `state-of-the-art`.

const QUOTES: [char; 3] = ['\'', '‘', '’'];

fn is_quote(c: char) -> bool {
    QUOTES.contains(&c)
}

fn is_upper(c: char) -> bool {
    matches!(c, 'A'..='Z' | 'À'..='Ö' | 'Ø'..='Þ')
}

fn is_lower(c: char) -> bool {
    matches!(c, 'a'..='z' | 'ß'..='ö' | 'ø'..='ÿ')
}

/// The characters of a token from some index on.
#[derive(Clone, Copy)]
struct Rest<'a>(&'a [(usize, char)]);

impl<'a> Rest<'a> {
    fn is(self, index: usize, class: impl Fn(char) -> bool) -> bool {
        self.0.get(index).is_some_and(|(_, c)| class(*c))
    }

    /// Returns the number of characters of a class at the start.
    fn run(self, class: impl Fn(char) -> bool) -> usize {
        self.0.iter().take_while(|(_, c)| class(*c)).count()
    }

    /// Returns the number of pairs of an apostrophe and a letter from an index on.
    fn pairs(self, start: usize) -> usize {
        let pairs = self.0.get(start..).unwrap_or_default().chunks_exact(2);
        pairs.take_while(|pair| is_quote(pair[0].1) && pair[1].1.is_alphabetic()).count()
    }

    /// Returns true for a lowercase letter before an uppercase one.
    fn changes_case(self, index: usize) -> bool {
        self.is(index, is_lower) && self.is(index + 1, is_upper)
    }

    /// Returns the length of the number at the start. Only the first one of a token may have a sign.
    fn number(self, is_first: bool) -> usize {
        let sign = usize::from(is_first && self.is(0, |c| c == '-'));
        let mut length = sign;
        loop {
            if self.is(length, |c| c.is_ascii_digit()) {
                length += 1;
            } else if self.is(length, |c| matches!(c, ',' | '.'))
                && self.is(length + 1, |c| c.is_ascii_digit())
            {
                length += 2;
            } else {
                return if length > sign { length } else { 0 };
            }
        }
    }

    /// Returns the number of characters of the subword at the start; 0 for a character that belongs to none.
    fn subword(self, is_first: bool) -> usize {
        let quotes = self.run(is_quote);
        if quotes > 0 && (is_first || quotes >= 2 || quotes == self.0.len()) {
            return quotes;
        }
        if self.is(0, is_upper) && self.is(1, is_upper) && self.is(2, is_lower) {
            return 1;
        }
        let marks = [self.number(is_first), self.run(|c| matches!(c, '-' | '_'))];
        if let Some(length) = marks.into_iter().find(|length| *length > 0) {
            return length;
        }

        let letters = self.run(char::is_alphabetic);
        if letters == 0 {
            return usize::from(quotes == 0);
        }
        // The shortest beginning that ends in a lowercase letter before an uppercase one.
        for start in 0..=letters {
            if let Some(pair) = (0..=self.pairs(start)).find(|pair| self.changes_case(start + 2 * pair)) {
                return start + 2 * pair + 1;
            }
        }
        letters + 2 * self.pairs(letters)
    }
}

/// Returns the subwords of a token. Isolated apostrophes inside a word are dropped.
pub(super) fn split(token: &str) -> Vec<&str> {
    let chars: Vec<(usize, char)> = token.char_indices().collect();
    let mut subwords = Vec::new();
    let mut index = 0;
    while index < chars.len() {
        let length = Rest(&chars[index..]).subword(index == 0);
        let end = chars.get(index + length).map_or(token.len(), |(offset, _)| *offset);
        subwords.extend((length > 0).then(|| &token[chars[index].0..end]));
        index += length.max(1);
    }
    subwords
}

/// Returns the words of letters in a text. An apostrophe between letters belongs to the word.
pub(super) fn letter_runs(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphabetic() && !matches!(c, '\'' | '’'))
        .flat_map(|word| {
            let word = word.trim_matches(is_quote);
            word.split("''")
        })
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_divided_at_hyphens_and_changes_of_case() {
        let check = |token: &str, expect: &[&str]| assert_eq!(split(token), expect, "{token}");
        check("well-known", &["well", "-", "known"]);
        check("don't", &["don't"]);
        check("iPhone", &["i", "Phone"]);
        check("HTMLElement", &["HTMLElement"]);
        check("ABc", &["A", "Bc"]);
        check("aBC", &["a", "BC"]);
        check("rock'n'roll", &["rock'n'r", "oll"]);
        check("'tis", &["'", "tis"]);
        check("dogs'", &["dogs", "'"]);
        check("U.S.", &["U", ".", "S", "."]);
        check("McDonald's", &["Mc", "Donald's"]);
        check("-1,250.5", &["-1,250.5"]);
    }
}
