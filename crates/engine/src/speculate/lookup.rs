//! The search for earlier occurrences of a sequence's last tokens.

use narthex_spec::TokenId;

use crate::position::Position;

/// Minimum length of the n-gram, in tokens.
pub(super) const MIN_NGRAM: usize = 2;

/// Maximum length of the n-gram, in tokens.
pub(super) const MAX_NGRAM: usize = 16;

/// An earlier occurrence of a sequence's last tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// Position of the token that followed it.
    next: usize,
    /// Length of the n-gram, which is the number of equal tokens.
    pub(crate) ngram: usize,
}

impl Lookup {
    /// Finds the occurrence with the longest n-gram; if there are several, the last of them.
    pub(crate) fn find(tokens: &[Position]) -> Option<Self> {
        let (last, earlier) = tokens.split_last()?;
        let mut best: Option<Self> = None;
        for (index, _) in earlier.iter().enumerate().rev().filter(|(_, token)| *token == last) {
            let pairs = tokens[..=index].iter().rev().zip(tokens.iter().rev());
            let ngram = pairs.take(MAX_NGRAM).take_while(|(a, b)| a == b).count();
            if ngram > best.map_or(MIN_NGRAM - 1, |best| best.ngram) {
                best = Some(Self { next: index + 1, ngram });
                if ngram == MAX_NGRAM {
                    break;
                }
            }
        }
        best
    }

    /// Appends `width` tokens that followed the occurrence. If fewer followed, they are repeated. The draft ends before
    /// a row of a medium.
    pub(crate) fn draft(&self, tokens: &[Position], width: usize, draft: &mut Vec<TokenId>) {
        let following = tokens[self.next..].iter().cycle().take(width);
        draft.extend(following.map_while(|position| position.as_token()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tokens: &[TokenId], expect: Option<(usize, &[TokenId])>) {
        let positions = Position::of_tokens(tokens);
        let found = Lookup::find(&positions);
        let mut draft = Vec::new();
        found.iter().for_each(|found| found.draft(&positions, 4, &mut draft));
        assert_eq!(found.map(|found| (found.ngram, &draft[..])), expect, "{tokens:?}");
    }

    #[test]
    fn the_longest_occurrence_is_continued() {
        check(&[], None);
        check(&[1, 2, 3, 4], None);
        // One equal token is not enough.
        check(&[1, 2, 3, 9, 3], None);
        check(&[5, 1, 2, 7, 8, 9, 6, 1, 2], Some((2, &[7, 8, 9, 6])));
        // Of equally long ones the last is found, but a longer one wins over a later one.
        check(&[1, 2, 7, 0, 1, 2, 8, 0, 3, 1, 2], Some((2, &[8, 0, 3, 1])));
        check(&[3, 1, 2, 7, 0, 5, 1, 2, 8, 0, 3, 1, 2], Some((3, &[7, 0, 5, 1])));
    }

    #[test]
    fn a_loop_goes_on() {
        check(&[4, 4, 4], Some((2, &[4, 4, 4, 4])));
        check(&[0, 1, 2, 3, 1, 2, 3], Some((3, &[1, 2, 3, 1])));
        let long = [7; 100];
        check(&long, Some((MAX_NGRAM, &[7, 7, 7, 7])));
    }
}
