//! A fake encoder. A text's vector is a hash of its own tokens, so any mix-up within a batch changes it. The encoder
//! checks its inputs strictly and fails on demand.

use std::collections::VecDeque;

use narthex_engine::{
    encoder::{Encoder, EncoderLimits, EncoderOutput, Text},
    executor::StepError,
};
use narthex_spec::TokenId;

use crate::executor::{hash, noise};

/// An encoder without a model.
pub struct FakeEncoder {
    limits: EncoderLimits,
    /// Errors of the next runs, one entry each; `None` lets a run succeed.
    pub failures: VecDeque<Option<StepError>>,
}

impl FakeEncoder {
    /// Creates an encoder that does not fail.
    pub fn new(limits: EncoderLimits) -> Self {
        Self { limits, failures: VecDeque::new() }
    }

    fn check(&self, texts: &[Text<'_>]) -> Result<(), String> {
        let longest = texts.iter().map(|text| text.tokens.len()).max().ok_or("no texts")?;
        if let Some(empty) = texts.iter().position(|text| text.tokens.is_empty()) {
            return Err(format!("text {empty} is empty"));
        }
        if longest > self.limits.max_length {
            return Err(format!("a text of {longest} tokens, {} fit", self.limits.max_length));
        }
        let tokens = self.limits.tokens_of(texts);
        if tokens > self.limits.max_batch_tokens {
            return Err(format!("{tokens} tokens, {} fit", self.limits.max_batch_tokens));
        }
        Ok(())
    }
}

impl Encoder for FakeEncoder {
    fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    /// Returns elements from -1 to 1.
    fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
        self.check(texts).map_err(|reason| StepError::BadPlan { reason })?;
        if let Some(error) = self.failures.pop_front().flatten() {
            return Err(error);
        }
        let width = self.limits.width;
        let rows = self.limits.rows;
        let vector = |text: &Text<'_>| {
            let segment = text.tokens.iter().copied().chain([text.second as TokenId]).collect::<Vec<_>>();
            noise(hash(&segment)).take(width * rows.of(text)).map(|x| 2.0 * x - 1.0).collect::<Vec<_>>()
        };
        Ok(EncoderOutput { data: texts.iter().flat_map(vector).collect(), width })
    }
}

#[cfg(test)]
mod tests {
    use narthex_engine::encoder::{Batching, Rows};

    use super::*;

    fn encoder() -> FakeEncoder {
        FakeEncoder::new(EncoderLimits {
            max_length: 4,
            max_batch_tokens: 8,
            batching: Batching::Padded,
            rows: Rows::Text,
            width: 3,
        })
    }

    #[test]
    fn vectors_depend_on_their_own_text_alone() {
        let all = encoder().run_tokens(&[&[1, 2], &[3]]).unwrap().data;
        assert_eq!(all[..3], encoder().run_tokens(&[&[1, 2]]).unwrap().data);
        assert_eq!(all[3..], encoder().run_tokens(&[&[3], &[9]]).unwrap().data[..3]);
        assert_ne!(all[..3], encoder().run_tokens(&[&[2, 1]]).unwrap().data);
        assert!(all.iter().all(|x| (-1.0..=1.0).contains(x)));
    }

    #[test]
    fn batches_outside_the_limits_are_refused() {
        let check = |texts: &[&[TokenId]], expect: &str| {
            let error = encoder().run_tokens(texts).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(&[], "no texts");
        check(&[&[1], &[]], "text 1 is empty");
        check(&[&[1; 5]], "5 tokens, 4 fit");
        check(&[&[1; 3], &[1], &[1]], "9 tokens, 8 fit");
    }

    #[test]
    fn failures_come_in_their_turn() {
        let mut encoder = encoder();
        let lost = StepError::Device { message: "lost".to_owned() };
        encoder.failures = [None, Some(lost.clone())].into();
        assert!(encoder.run_tokens(&[&[1]]).is_ok());
        assert_eq!(encoder.run_tokens(&[&[1]]), Err(lost));
        assert!(encoder.run_tokens(&[&[1]]).is_ok());
    }
}
