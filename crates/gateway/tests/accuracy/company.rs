//! A request gets the same tokens alone and in a batch with other requests, unless two tokens are nearly equally
//! likely.

use std::{ops::ControlFlow, sync::mpsc};

use narthex_engine::{
    executor::Executor,
    request::{Finish, Request, TokenEvent, TokenSink, Usage},
    worker::{Engine, EngineConfig},
};
use narthex_spec::{Scheme, TokenId};

use crate::{best, executor, goldens, rows};

/// Number of concurrent requests.
const REQUESTS: usize = 8;

/// Minimum difference of the reference's two best logits from which `w8` must choose the same token alone and in a
/// batch. Kernels round differently for other numbers of rows (decision record 0004).
const MARGIN: f32 = 0.5;

/// Sink that sends all tokens at the end of the sequence.
struct Whole {
    tokens: Vec<TokenId>,
    done: mpsc::Sender<Vec<TokenId>>,
}

impl TokenSink for Whole {
    fn token(&mut self, event: TokenEvent<'_>) -> ControlFlow<()> {
        self.tokens.push(event.token);
        ControlFlow::Continue(())
    }

    fn finish(&mut self, finish: Finish, _: Usage) {
        assert_eq!(finish, Finish::Length);
        // If the receiver is gone, its thread has already failed with a message of its own.
        let _ = self.done.send(std::mem::take(&mut self.tokens));
    }
}

fn start() -> Engine {
    let executor = executor(Scheme::W8, REQUESTS);
    let config = EngineConfig::for_limits(executor.limits());
    Engine::start(Box::new(executor), config).unwrap()
}

fn submit(engine: &Engine, prompt: &[TokenId], max_tokens: usize) -> mpsc::Receiver<Vec<TokenId>> {
    let (done, answer) = mpsc::channel();
    let request = Request::greedy(prompt.to_vec(), max_tokens, Whole { tokens: Vec::new(), done });
    engine.submit(request).unwrap();
    answer
}

#[test]
fn eight_at_once_are_answered_as_each_alone() {
    let (_, answers) = goldens::decoder();
    let prompts: Vec<&[TokenId]> =
        answers.iter().take(REQUESTS).map(|answer| &answer.tokens[..answer.start]).collect();
    let length = answers[0].positions.len();
    let engine = start();
    let alone: Vec<_> =
        prompts.iter().map(|prompt| submit(&engine, prompt, length).recv().unwrap()).collect();
    // A new engine, because the first one has cached these prompts.
    let engine = start();
    let waiting: Vec<_> = prompts.iter().map(|prompt| submit(&engine, prompt, length)).collect();
    let mut reference = executor(Scheme::F32, 1);
    for ((prompt, alone), waiting) in prompts.iter().zip(&alone).zip(waiting) {
        let together = waiting.recv().unwrap();
        assert_eq!((alone.len(), together.len()), (length, length));
        // After the first difference, the two texts have different prompts.
        let Some(at) = (0..length).find(|&at| alone[at] != together[at]) else { continue };
        let text = [prompt, &alone[..at]].concat();
        let mut row = rows(&mut reference, &text, text.len() - 1).remove(0);
        let first = best(&row) as usize;
        let largest = std::mem::replace(&mut row[first], f32::NEG_INFINITY);
        let margin = largest - row[best(&row) as usize];
        println!("differs at token {at}: the reference's two best logits are {margin:.3} apart");
        assert!(margin <= MARGIN, "at token {at}: {margin}");
    }
}
