//! Lists of SentencePiece tokens as NeMo's exports have them: a line for each token, with its id after a space.

use narthex_spec::TokenId;

/// Maximum number of tokens.
const MAX_TOKENS: usize = 1 << 20;

/// Sign at the start of a word.
const WORD_START: char = '\u{2581}';

/// Token without text.
const BLANK: &str = "<blk>";

/// Signs that keep the space before them.
const OPENING: &str = "([{<«„“‘\"¿¡$€£¥#@&+-–—=";

/// The tokens of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenList {
    tokens: Vec<String>,
    blank: Option<TokenId>,
}

/// Reason why a list of tokens cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found {found}")]
pub struct TokenListError {
    /// The expectation.
    pub expected: String,
    /// The finding.
    pub found: String,
}

impl TokenList {
    /// Reads a list in UTF-8. Every id from 0 to the number of tokens has a line.
    ///
    /// # Errors
    /// [`TokenListError`] with the first line that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, TokenListError> {
        let error = |expected: &str, found: String| TokenListError { expected: expected.to_owned(), found };
        let text = std::str::from_utf8(bytes).map_err(|found| error("UTF-8", found.to_string()))?;
        let mut tokens: Vec<Option<String>> = Vec::new();
        let lines = text.strip_suffix('\n').unwrap_or(text).split('\n');
        let count = lines.clone().count();
        if count > MAX_TOKENS {
            return Err(error("at most 1048576 tokens", count.to_string()));
        }
        tokens.resize(count, None);

        for (line, number) in lines.zip(1usize..) {
            let fields: Vec<&str> = line.strip_suffix('\r').unwrap_or(line).split(' ').collect();
            let entry = match fields[..] {
                [token, id] => id.parse::<usize>().ok().map(|id| (token, id)),
                _ => None,
            };
            let place = entry.and_then(|(token, id)| Some((token, tokens.get_mut(id)?)));
            match place {
                Some((token, place @ None)) => *place = Some(token.replace(WORD_START, " ")),
                _ => {
                    let found: String = line.chars().take(80).collect();
                    let expected = format!("a token, a space and an id of its own below {count}");
                    return Err(error(&expected, format!("{found:?} in line {number}")));
                }
            }
        }
        let tokens: Vec<String> = tokens.into_iter().flatten().collect();
        let blank = tokens.iter().position(|token| token == BLANK).map(|blank| blank as TokenId);
        Ok(Self { tokens, blank })
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns true if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the token without text.
    pub fn blank(&self) -> Option<TokenId> {
        self.blank
    }

    /// Returns the text of a token, with a space at the start of a word. It is empty for control tokens and unknown ids.
    pub fn piece(&self, token: TokenId) -> &str {
        let piece = self.tokens.get(token as usize).map_or("", String::as_str);
        let is_control = piece == BLANK || piece.starts_with("<|") && piece.ends_with("|>");
        if is_control { "" } else { piece }
    }

    /// Returns the text of tokens without the space at its start, and without spaces before signs that belong to the word
    /// before them.
    pub fn text(&self, tokens: &[TokenId]) -> String {
        let whole: String = tokens.iter().map(|&token| self.piece(token)).collect();
        let mut text = String::with_capacity(whole.len());
        let mut signs = whole.chars().peekable();
        while let Some(sign) = signs.next() {
            let is_before_word = signs
                .peek()
                .is_some_and(|next| next.is_alphanumeric() || *next == '_' || OPENING.contains(*next));
            if !sign.is_whitespace() || !text.is_empty() && is_before_word {
                text.push(sign);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_ids_and_spaces() {
        let list = TokenList::parse("▁he 1\n<unk> 0\nllo 2\n. 4\n▁ 3\n▁$5 5\n<|en|> 6\n<blk> 7\n".as_bytes());
        let list = list.unwrap();
        assert_eq!((list.len(), list.blank(), list.is_empty()), (8, Some(7), false));
        assert_eq!([list.piece(1), list.piece(7), list.piece(6), list.piece(99)], [" he", "", "", ""]);
        assert_eq!(list.text(&[6, 1, 2, 3, 4, 1, 5]), "hello. he $5");
        assert_eq!(list.text(&[3, 3, 1, 3, 3, 2]), "he llo");
        assert_eq!(list.text(&[]), "");
        assert_eq!(TokenList::parse(b"a 0\r\nb 1\r\n").unwrap().text(&[0, 1]), "ab");
    }

    #[test]
    fn wrong_lines_are_named() {
        let check = |text: &str, expect: &str| {
            let message = TokenList::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains(expect), "{message}");
        };
        check("a 0\nb", "an id of its own below 2, found \"b\" in line 2");
        check("a 0\nb 0", "found \"b 0\" in line 2");
        check("a 0\nb 7", "found \"b 7\" in line 2");
        check("a 0\nb c 1", "found \"b c 1\" in line 2");
        check("a -1", "found \"a -1\" in line 1");
        check("", "found \"\" in line 1");
        assert!(TokenList::parse(&[0xFF, b' ', b'0']).unwrap_err().to_string().contains("expected UTF-8"));
    }
}
