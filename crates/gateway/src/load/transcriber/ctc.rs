//! Greedy decoding of rows with probabilities of tokens and of a blank: repetitions and blanks are left out (Graves et al.
//! 2006).

use std::ops::Range;

use narthex_spec::TokenId;

use super::largest;

/// A token, the rows in which it is spoken, and the logarithm of its probability.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RowToken {
    pub(super) id: TokenId,
    pub(super) log_probability: f32,
    pub(super) rows: Range<usize>,
}

/// Returns the tokens of rows of `vocab` logarithms of probabilities. The probability of a token is the product of those of
/// its rows.
pub(super) fn decode(rows: &[f32], vocab: usize, blank: TokenId) -> Vec<RowToken> {
    let mut tokens: Vec<RowToken> = Vec::new();
    for (row, values) in rows.chunks_exact(vocab).enumerate() {
        let best = largest(values);
        let id = best as TokenId;
        if id == blank {
            continue;
        }
        match tokens.last_mut() {
            Some(last) if last.id == id && last.rows.end == row => {
                last.rows.end = row + 1;
                last.log_probability += values[best];
            }
            _ => tokens.push(RowToken { id, log_probability: values[best], rows: row..row + 1 }),
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_and_blanks_are_left_out() {
        let best = [3, 1, 1, 3, 1, 2, 2, 2, 3, 0];
        let rows: Vec<f32> = best
            .iter()
            .flat_map(|&best| (0..4).map(move |at| if at == best { -0.25 } else { -2.0 }))
            .collect();
        let found = decode(&rows, 4, 3);
        let expect = [(1, -0.5, 1..3), (1, -0.25, 4..5), (2, -0.75, 5..8), (0, -0.25, 9..10)];
        let expect = expect.map(|(id, log_probability, rows)| RowToken { id, log_probability, rows });
        assert_eq!(found, expect);
        assert!(decode(&[], 4, 3).is_empty());
    }
}
