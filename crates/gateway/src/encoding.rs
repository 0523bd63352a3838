//! The queue in front of an encoder: requests are packed into batches of texts of like length.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use narthex_engine::{
    encoder::{Encoder, EncoderLimits, Text},
    executor::StepError,
};
use narthex_spec::TokenId;

use crate::error::Error;

/// How soon a client should ask again when the queue is full.
const RETRY: Duration = Duration::from_secs(1);

/// A text of a request, as [`Text`] has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) second: usize,
    pub(crate) asked: Vec<usize>,
}

impl Item {
    fn text(&self) -> Text<'_> {
        Text { tokens: &self.tokens, second: self.second, asked: &self.asked }
    }
}

impl From<Vec<TokenId>> for Item {
    fn from(tokens: Vec<TokenId>) -> Self {
        Self { second: tokens.len(), tokens, asked: Vec::new() }
    }
}

struct Job {
    texts: Vec<Item>,
    reply: mpsc::Sender<Result<Vec<Vec<f32>>, StepError>>,
}

/// Requests on their way through an encoder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Those in the batches that run now.
    pub(crate) running: usize,
    /// Those that come after.
    pub(crate) waiting: usize,
}

/// An encoder on a thread of its own.
pub(crate) struct EncoderQueue {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    load: Arc<Mutex<Load>>,
    /// Requests that may wait while others run; 0 lets none wait, but one run.
    limit: usize,
    limits: EncoderLimits,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutexes here guard is plain data that every holder leaves whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EncoderQueue {
    pub(crate) fn start(mut encoder: Box<dyn Encoder>, limit: usize) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel::<Job>();
        let load = Arc::new(Mutex::new(Load::default()));
        let own = load.clone();
        let limits = encoder.limits().clone();
        let thread = std::thread::Builder::new()
            .name("encoder".to_owned())
            .spawn(move || {
                while let Ok(first) = receiver.recv() {
                    let mut jobs = vec![first];
                    jobs.extend(receiver.try_iter());
                    let running = jobs.len();
                    take(&own, running);
                    let answers = run(encoder.as_mut(), &jobs);
                    // The place is free before the answer is out, so that who has it may ask again at once.
                    lock(&own).running = 0;
                    reply(jobs, answers);
                }
            })
            .map_err(|source| Error::Io { what: "cannot start the encoder's thread".to_owned(), source })?;
        Ok(Self { jobs: Mutex::new(Some(sender)), load, limit, limits, thread: Mutex::new(Some(thread)) })
    }

    /// Waits for the rows of each of `texts`, in their order.
    pub(crate) fn run(&self, texts: Vec<Item>) -> Result<Vec<Vec<f32>>, Error> {
        self.enter()?;
        let (reply, answer) = mpsc::channel();
        let sent = match &*lock(&self.jobs) {
            Some(jobs) => jobs.send(Job { texts, reply }).is_ok(),
            None => false,
        };
        if !sent {
            lock(&self.load).waiting -= 1;
            return Err(Error::ShuttingDown);
        }
        Ok(answer.recv().map_err(|_| Error::ShuttingDown)??)
    }

    /// Counts a request in, or refuses it. Where nothing runs yet, the first of those that wait is as good as running.
    fn enter(&self) -> Result<(), Error> {
        let mut load = lock(&self.load);
        let about_to_run = usize::from(load.running == 0);
        if load.waiting >= self.limit.saturating_add(about_to_run) {
            let queued = load.waiting - about_to_run;
            return Err(Error::Overloaded { queued, retry_after: RETRY });
        }
        load.waiting += 1;
        Ok(())
    }

    pub(crate) fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    pub(crate) fn load(&self) -> Load {
        *lock(&self.load)
    }

    /// Ends the thread once the queued jobs are done.
    pub(crate) fn shutdown(&self) {
        drop(lock(&self.jobs).take());
        if let Some(thread) = lock(&self.thread).take()
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

fn take(load: &Mutex<Load>, jobs: usize) {
    let mut load = lock(load);
    load.waiting -= jobs;
    load.running = jobs;
}

/// Runs all texts of all jobs, the longest first; gives all their rows in order.
fn run(encoder: &mut dyn Encoder, jobs: &[Job]) -> Result<Vec<Vec<f32>>, StepError> {
    let texts: Vec<Text<'_>> = jobs.iter().flat_map(|job| job.texts.iter().map(Item::text)).collect();
    run_batches(encoder, &texts)
}

/// Answers each job with its part.
fn reply(jobs: Vec<Job>, outcome: Result<Vec<Vec<f32>>, StepError>) {
    let mut outcome = outcome.map(Vec::into_iter);
    for job in jobs {
        let answer = match &mut outcome {
            Ok(vectors) => Ok(vectors.by_ref().take(job.texts.len()).collect()),
            Err(error) => Err(error.clone()),
        };
        // A caller that has gone away needs no answer.
        let _ = job.reply.send(answer);
    }
}

fn run_batches(encoder: &mut dyn Encoder, texts: &[Text<'_>]) -> Result<Vec<Vec<f32>>, StepError> {
    let EncoderLimits { max_batch_tokens: budget, rows, .. } = *encoder.limits();
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(texts[index].tokens.len()));
    let mut vectors = vec![Vec::new(); texts.len()];
    let mut rest = order.as_slice();
    while let Some(&longest) = rest.first() {
        let fits = (budget / texts[longest].tokens.len().max(1)).clamp(1, rest.len());
        let (batch, later) = rest.split_at(fits);
        let input: Vec<Text<'_>> = batch.iter().map(|&index| texts[index]).collect();
        let output = encoder.run(&input)?;
        let mut data = output.data.into_iter();
        for &index in batch {
            vectors[index] = data.by_ref().take(rows.of(&texts[index]) * output.width).collect();
        }
        rest = later;
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use narthex_engine::encoder::{EncoderOutput, Rows};

    use super::*;

    /// Gives each text's length and first token, and refuses batches over its limit.
    struct Lengths(EncoderLimits);

    impl Encoder for Lengths {
        fn limits(&self) -> &EncoderLimits {
            &self.0
        }

        fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
            let longest = texts.iter().map(|text| text.tokens.len()).max().unwrap();
            assert!(texts.len() == 1 || longest * texts.len() <= self.0.max_batch_tokens);
            let row = |text: &Text<'_>| [text.tokens.len() as f32, text.tokens[0] as f32];
            let data = texts.iter().flat_map(|text| row(text).repeat(self.0.rows.of(text))).collect();
            Ok(EncoderOutput { data, width: 2 })
        }
    }

    fn queue(max_batch_tokens: usize, limit: usize, rows: Rows) -> EncoderQueue {
        let limits = EncoderLimits { max_length: 100, max_batch_tokens, rows, width: 2 };
        EncoderQueue::start(Box::new(Lengths(limits)), limit).unwrap()
    }

    #[test]
    fn rows_come_back_in_the_order_of_the_texts() {
        let text =
            |n: u32| Item { asked: vec![0; n as usize % 3], ..vec![n; (n as usize * 7) % 23 + 1].into() };
        let texts: Vec<Item> = (1..40).map(text).collect();
        for rows in [Rows::Text, Rows::Tokens, Rows::Asked] {
            let row = |t: &Item| [t.tokens.len() as f32, t.tokens[0] as f32].repeat(rows.of(&t.text()));
            let expected: Vec<Vec<f32>> = texts.iter().map(row).collect();
            assert_eq!(queue(32, 8, rows).run(texts.clone()).unwrap(), expected);
        }
    }

    /// Tells when a run has begun, and ends it when it is told to.
    struct Held {
        limits: EncoderLimits,
        begun: mpsc::Sender<()>,
        go_on: mpsc::Receiver<()>,
    }

    impl Encoder for Held {
        fn limits(&self) -> &EncoderLimits {
            &self.limits
        }

        fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
            self.begun.send(()).unwrap();
            self.go_on.recv().unwrap();
            Ok(EncoderOutput { data: vec![1.0; texts.len()], width: 1 })
        }
    }

    #[test]
    fn as_many_wait_as_the_limit_says_while_one_runs() {
        for limit in [0, 2] {
            let limits = EncoderLimits { max_length: 8, max_batch_tokens: 1, rows: Rows::Text, width: 1 };
            let ((begun, has_begun), (release, go_on)) = (mpsc::channel(), mpsc::channel());
            let queue = EncoderQueue::start(Box::new(Held { limits, begun, go_on }), limit).unwrap();
            std::thread::scope(|scope| {
                let one = || queue.run(vec![vec![1].into()]);
                let mut callers = vec![scope.spawn(one)];
                has_begun.recv().unwrap();
                callers.extend((0..limit).map(|_| scope.spawn(one)));
                while queue.load() != (Load { running: 1, waiting: limit }) {
                    std::thread::yield_now();
                }
                let error = one().unwrap_err();
                assert!(matches!(error, Error::Overloaded { queued, .. } if queued == limit), "{error}");
                (0..=limit).for_each(|_| release.send(()).unwrap());
                assert!(callers.into_iter().all(|caller| caller.join().unwrap().is_ok()));
            });
            // Who has an answer finds the place free.
            release.send(()).unwrap();
            queue.run(vec![vec![1].into()]).unwrap();
            assert_eq!(queue.load(), Load::default());
        }
    }

    #[test]
    fn a_closed_queue_says_so() {
        let queue = queue(32, 4, Rows::Text);
        queue.shutdown();
        assert!(matches!(queue.run(vec![vec![1].into()]), Err(Error::ShuttingDown)));
        assert_eq!(queue.load(), Load::default());
    }
}
