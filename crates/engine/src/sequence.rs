//! One sequence from submission to its end: its tokens, how far they have run, and whom they are reported to.

use std::{
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use narthex_spec::{SlotId, TokenId};

use crate::{
    executor::{Logits, StepError},
    kv::PromptEnd,
    request::{Finish, LogProbs, Request, TokenEvent, TokenSink, Usage},
    sample::{Sampler, Scratch, log_probs},
};

/// A sequence in the engine.
pub(crate) struct Sequence {
    /// Order of submission.
    pub(crate) number: u64,
    /// Prompt and generated tokens.
    pub(crate) tokens: Vec<TokenId>,
    /// How many of them are the prompt.
    pub(crate) prompt: usize,
    /// How many of them are in the slot.
    pub(crate) cached: usize,
    /// The slot, while it runs.
    pub(crate) slot: Option<SlotId>,
    /// Tokens it may have in all.
    pub(crate) room: usize,
    stop: Vec<TokenId>,
    sampler: Sampler,
    pub(crate) logprobs: Option<LogProbs>,
    /// The distribution after the prompt.
    pub(crate) prompt_end: Option<PromptEnd>,
    /// Prompt tokens reported so far, where they are wanted.
    reported: usize,
    pub(crate) reused: usize,
    /// A final stop token, which is counted but not reported.
    stopped: usize,
    cancelled: Arc<AtomicBool>,
    sink: Option<Box<dyn TokenSink>>,
}

impl Sequence {
    pub(crate) fn new(number: u64, request: Request, context: usize, cancelled: Arc<AtomicBool>) -> Self {
        let prompt = request.prompt.len();
        let room = prompt.saturating_add(request.max_tokens).min(context);
        let mut tokens = request.prompt;
        // Growing the list later would be an allocation in the middle of an answer.
        tokens.reserve_exact(room.saturating_sub(prompt) + 1);
        let sampler = Sampler::new(request.sampling, &tokens, room - prompt.min(room));
        Self {
            number,
            prompt,
            tokens,
            cached: 0,
            slot: None,
            room,
            stop: request.stop,
            sampler,
            logprobs: request.logprobs,
            prompt_end: None,
            reported: 0,
            reused: 0,
            stopped: 0,
            cancelled,
            sink: Some(request.sink),
        }
    }

    /// Tokens that must run before the next one can be chosen.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// Whether only the newest generated token has to run.
    pub(crate) fn decodes(&self) -> bool {
        self.pending() == 1 && self.tokens.len() > self.prompt
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Whether prompt tokens still have to be reported.
    pub(crate) fn wants_prompt(&self) -> bool {
        self.logprobs.is_some_and(|wanted| wanted.prompt) && self.reported < self.prompt
    }

    /// Calls the sink; one that panics counts as gone.
    fn tell(&mut self, call: impl FnOnce(&mut dyn TokenSink) -> ControlFlow<()>) -> ControlFlow<()> {
        let Some(sink) = &mut self.sink else { return ControlFlow::Break(()) };
        match catch_unwind(AssertUnwindSafe(|| call(sink.as_mut()))) {
            Ok(flow) => flow,
            Err(_) => {
                self.sink = None;
                ControlFlow::Break(())
            }
        }
    }

    /// Reports the prompt tokens that the rows of one span decide: row `i` is the distribution after token `at + i`.
    pub(crate) fn report_prompt(
        &mut self,
        at: usize,
        rows: &[&[f32]],
        scratch: &mut Scratch,
    ) -> ControlFlow<()> {
        let top = self.logprobs.map_or(0, |wanted| wanted.top);
        if self.reported == 0 {
            let first = self.tokens[0];
            self.reported = 1;
            self.tell(|sink| sink.prompt_token(TokenEvent { token: first, logprob: None, top: &[] }))?;
        }
        for (row, logits) in rows.iter().enumerate() {
            let position = at + row + 1;
            if position != self.reported || position >= self.prompt {
                continue;
            }
            let token = self.tokens[position];
            self.reported += 1;
            let (logprob, top) = log_probs(logits, token, top, scratch);
            self.tell(|sink| sink.prompt_token(TokenEvent { token, logprob: Some(logprob), top }))?;
        }
        ControlFlow::Continue(())
    }

    /// Chooses the next token from its distribution and reports it; gives the end, where this was it.
    pub(crate) fn advance(&mut self, logits: &[f32], scratch: &mut Scratch) -> Option<Finish> {
        if self.tokens.len() == self.prompt && self.prompt_end.is_none() {
            self.prompt_end = Some(PromptEnd { length: self.prompt, logits: logits.into() });
        }
        let Some(token) = self.sampler.sample(logits, scratch) else {
            return Some(Finish::Failed(StepError::Device {
                message: "the logits are not finite".to_owned(),
            }));
        };
        if self.stop.contains(&token) {
            self.stopped = 1;
            return Some(Finish::Stop);
        }
        self.tokens.push(token);
        let flow = match self.logprobs {
            Some(wanted) => {
                let (logprob, top) = log_probs(logits, token, wanted.top, scratch);
                self.tell(|sink| sink.token(TokenEvent { token, logprob: Some(logprob), top }))
            }
            None => self.tell(|sink| sink.token(TokenEvent { token, logprob: None, top: &[] })),
        };
        match flow {
            ControlFlow::Break(()) => Some(Finish::Cancelled),
            ControlFlow::Continue(()) if self.tokens.len() >= self.room => Some(Finish::Length),
            ControlFlow::Continue(()) => None,
        }
    }

    /// Reports the end.
    pub(crate) fn finish(mut self, finish: Finish) {
        let usage = Usage {
            prompt_tokens: self.prompt,
            cached_tokens: self.reused,
            completion_tokens: self.tokens.len() - self.prompt + self.stopped,
        };
        let _ = self.tell(|sink| {
            sink.finish(finish, usage);
            ControlFlow::Continue(())
        });
    }
}

/// The rows of one span in a step's logits.
pub(crate) fn rows<'a>(logits: &Logits<'a>, from: usize, count: usize) -> Vec<&'a [f32]> {
    (from..from + count).map(|row| logits.row(row)).collect()
}
