//! The queue in front of an embedding model: requests are packed into batches of texts of like length.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use narthex_engine::{
    encoder::{Encoder, EncoderLimits},
    executor::StepError,
};
use narthex_spec::TokenId;

use crate::error::Error;

/// How soon a client should ask again when the queue is full.
const RETRY: Duration = Duration::from_secs(1);

struct Job {
    texts: Vec<Vec<TokenId>>,
    reply: mpsc::Sender<Result<Vec<Vec<f32>>, StepError>>,
}

/// An encoder on a thread of its own.
pub(crate) struct EncoderQueue {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    waiting: std::sync::Arc<AtomicUsize>,
    limit: usize,
    limits: EncoderLimits,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EncoderQueue {
    pub(crate) fn start(mut encoder: Box<dyn Encoder>, limit: usize) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel::<Job>();
        let waiting = std::sync::Arc::new(AtomicUsize::new(0));
        let counter = waiting.clone();
        let limits = encoder.limits().clone();
        let thread = std::thread::Builder::new()
            .name("encoder".to_owned())
            .spawn(move || {
                while let Ok(first) = receiver.recv() {
                    let mut jobs = vec![first];
                    jobs.extend(receiver.try_iter());
                    let taken = jobs.len();
                    serve(encoder.as_mut(), jobs);
                    counter.fetch_sub(taken, Ordering::Relaxed);
                }
            })
            .map_err(|source| Error::Io { what: "cannot start the encoder's thread".to_owned(), source })?;
        Ok(Self { jobs: Mutex::new(Some(sender)), waiting, limit, limits, thread: Mutex::new(Some(thread)) })
    }

    /// Waits for the vectors of `texts`, in their order.
    pub(crate) fn run(&self, texts: Vec<Vec<TokenId>>) -> Result<Vec<Vec<f32>>, Error> {
        let queued = self.waiting.fetch_add(1, Ordering::Relaxed);
        if queued >= self.limit {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::Overloaded { queued, retry_after: RETRY });
        }
        let (reply, answer) = mpsc::channel();
        let sent = match &*self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(jobs) => jobs.send(Job { texts, reply }).is_ok(),
            None => false,
        };
        if !sent {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::ShuttingDown);
        }
        Ok(answer.recv().map_err(|_| Error::ShuttingDown)??)
    }

    pub(crate) fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Ends the thread once the queued jobs are done.
    pub(crate) fn shutdown(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
            && thread.join().is_err()
        {
            tracing::error!("the encoder's thread panicked");
        }
    }
}

impl Drop for EncoderQueue {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Runs all texts of all jobs, the longest first, and answers each job.
fn serve(encoder: &mut dyn Encoder, jobs: Vec<Job>) {
    let texts: Vec<&[TokenId]> = jobs.iter().flat_map(|job| job.texts.iter().map(Vec::as_slice)).collect();
    let outcome = run_batches(encoder, &texts);
    let mut at = 0;
    for job in &jobs {
        let next = at + job.texts.len();
        let answer = match &outcome {
            Ok(vectors) => Ok(vectors[at..next].to_vec()),
            Err(error) => Err(error.clone()),
        };
        // A caller that has gone away needs no answer.
        let _ = job.reply.send(answer);
        at = next;
    }
}

fn run_batches(encoder: &mut dyn Encoder, texts: &[&[TokenId]]) -> Result<Vec<Vec<f32>>, StepError> {
    let budget = encoder.limits().max_batch_tokens;
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(texts[index].len()));
    let mut vectors = vec![Vec::new(); texts.len()];
    let mut rest = order.as_slice();
    while let Some(&longest) = rest.first() {
        let fits = (budget / texts[longest].len().max(1)).clamp(1, rest.len());
        let (batch, later) = rest.split_at(fits);
        let input: Vec<&[TokenId]> = batch.iter().map(|&index| texts[index]).collect();
        let output = encoder.run(&input)?;
        for (&index, vector) in batch.iter().zip(output.data.chunks_exact(output.width)) {
            vectors[index] = vector.to_vec();
        }
        rest = later;
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use narthex_engine::encoder::EncoderOutput;

    use super::*;

    /// Gives each text's length and first token, and refuses batches over its limit.
    struct Lengths(EncoderLimits);

    impl Encoder for Lengths {
        fn limits(&self) -> &EncoderLimits {
            &self.0
        }

        fn run(&mut self, texts: &[&[TokenId]]) -> Result<EncoderOutput, StepError> {
            let longest = texts.iter().map(|text| text.len()).max().unwrap();
            assert!(texts.len() == 1 || longest * texts.len() <= self.0.max_batch_tokens);
            let data = texts.iter().flat_map(|text| [text.len() as f32, text[0] as f32]).collect();
            Ok(EncoderOutput { data, width: 2 })
        }
    }

    fn queue(max_batch_tokens: usize, limit: usize) -> EncoderQueue {
        let limits = EncoderLimits { max_length: 100, max_batch_tokens, width: 2 };
        EncoderQueue::start(Box::new(Lengths(limits)), limit).unwrap()
    }

    #[test]
    fn vectors_come_back_in_the_order_of_the_texts() {
        let texts: Vec<Vec<u32>> = (1..40u32).map(|n| vec![n; (n as usize * 7) % 23 + 1]).collect();
        let expected: Vec<Vec<f32>> = texts.iter().map(|t| vec![t.len() as f32, t[0] as f32]).collect();
        assert_eq!(queue(32, 8).run(texts).unwrap(), expected);
    }

    #[test]
    fn a_full_queue_refuses_and_a_closed_one_says_so() {
        assert!(matches!(queue(32, 0).run(vec![vec![1]]), Err(Error::Overloaded { queued: 0, .. })));
        let queue = queue(32, 4);
        queue.shutdown();
        assert!(matches!(queue.run(vec![vec![1]]), Err(Error::ShuttingDown)));
        assert_eq!(queue.waiting(), 0);
    }
}
