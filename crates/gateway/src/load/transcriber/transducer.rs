//! Greedy decoding of a transducer (Graves 2012, arXiv:1211.3711), and of one that predicts durations (Xu et al. 2023,
//! arXiv:2304.06795).

use narthex_spec::TokenId;

use super::{ctc::RowToken, largest};
use crate::{error::Error, load::verify::compare::log_sum_exp};

/// States of the network that reads the tokens.
pub(super) type States = [Vec<f32>; 2];

/// Result of a step: logits of the tokens and then of durations, and the states after the token.
pub(super) struct JointStep {
    pub(super) logits: Vec<f32>,
    pub(super) states: States,
}

/// Numbers that the decoding needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransducerBounds {
    /// Number of tokens.
    pub(super) vocab: usize,
    /// Token of a step without text, which is also the token before the first.
    pub(super) blank: TokenId,
    /// Number of rows.
    pub(super) rows: usize,
    /// Maximum number of tokens in a row.
    pub(super) max_tokens_per_row: usize,
}

/// Returns the tokens of the rows. `step` computes the logits of a row after the last token and its states; it is called at
/// most once for each row and each of its tokens.
///
/// The duration of a token is the index of the largest logit after those of the tokens. Without such logits, a token has no
/// duration, so that a row ends with a blank.
pub(super) fn decode(
    bounds: TransducerBounds,
    mut states: States,
    step: &mut dyn FnMut(usize, TokenId, &States) -> Result<JointStep, Error>,
) -> Result<Vec<RowToken>, Error> {
    let TransducerBounds { vocab, blank, rows, max_tokens_per_row } = bounds;
    let mut tokens: Vec<RowToken> = Vec::new();
    let mut row = 0;
    let mut in_row = 0;
    while row < rows {
        let before = tokens.last().map_or(blank, |token| token.id);
        let found = step(row, before, &states)?;
        let (logits, durations) = found.logits.split_at(found.logits.len().min(vocab));
        let best = largest(logits);
        let duration = largest(durations);

        let is_blank = best == blank as usize;
        if !is_blank {
            states = found.states;
            in_row += 1;
            let log_probability = (f64::from(logits[best]) - log_sum_exp(logits)) as f32;
            let end = (row + duration.max(1)).min(rows);
            tokens.push(RowToken { id: best as TokenId, log_probability, rows: row..end });
        }
        if duration > 0 {
            row += duration;
            in_row = 0;
        } else if is_blank || in_row >= max_tokens_per_row {
            row += 1;
            in_row = 0;
        }
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLANK: TokenId = 3;

    /// A token, its first row, and the row after its last one.
    type TokenRows = (TokenId, usize, usize);

    /// Row, token and state that a step was called with.
    type StepCall = (usize, TokenId, f32);

    /// Decodes steps with these tokens and durations.
    fn run(steps: &[(usize, Option<usize>)], rows: usize) -> (Vec<TokenRows>, Vec<StepCall>) {
        let mut calls = Vec::new();
        let bounds = TransducerBounds { vocab: 4, blank: BLANK, rows, max_tokens_per_row: 2 };
        let tokens = decode(bounds, [vec![0.0], vec![0.0]], &mut |row, token, states| {
            let (best, duration) = steps[calls.len()];
            calls.push((row, token, states[0][0]));
            let mut logits = vec![0.0; 4];
            logits[best] = 2.0;
            if let Some(duration) = duration {
                logits.extend((0..5).map(|at| if at == duration { 1.0 } else { 0.0 }));
            }
            Ok(JointStep { logits, states: [vec![calls.len() as f32], vec![0.0]] })
        });
        let tokens = tokens.unwrap();
        assert!(tokens.iter().all(|token| (token.log_probability - -0.340_753).abs() < 1e-5), "{tokens:?}");
        (tokens.into_iter().map(|token| (token.id, token.rows.start, token.rows.end)).collect(), calls)
    }

    #[test]
    fn a_row_ends_with_a_blank_or_its_last_token() {
        let steps = [(1, None), (3, None), (0, None), (2, None), (3, None)];
        let (tokens, calls) = run(&steps, 3);
        assert_eq!(tokens, [(1, 0, 1), (0, 1, 2), (2, 1, 2)]);
        // A blank leaves the token and the states as they are.
        assert_eq!(calls, [(0, 3, 0.0), (0, 1, 1.0), (1, 1, 1.0), (1, 0, 3.0), (2, 2, 4.0)]);
    }

    #[test]
    fn durations_skip_rows() {
        let steps = [(1, Some(2)), (3, Some(1)), (2, Some(0)), (0, Some(0)), (3, Some(0)), (1, Some(4))];
        let (tokens, calls) = run(&steps, 6);
        assert_eq!(tokens, [(1, 0, 2), (2, 3, 4), (0, 3, 4), (1, 5, 6)]);
        let rows: Vec<usize> = calls.iter().map(|call| call.0).collect();
        assert_eq!(rows, [0, 2, 3, 3, 4, 5]);
    }
}
