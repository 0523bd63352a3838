//! The queue in front of an encoder: requests are packed into batches of texts of like length.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::Duration,
};

use narthex_engine::{
    encoder::{Encoder, EncoderLimits, Text},
    executor::StepError,
    worker::Drain,
};
use narthex_spec::TokenId;

use crate::{cancel::Cancel, error::Error};

/// How soon a client should ask again when the queue is full.
const RETRY: Duration = Duration::from_secs(1);

/// How often a request that waits looks whether it is still wanted.
const GLANCE: Duration = Duration::from_millis(20);

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
    place: u64,
    texts: Vec<Item>,
    cancel: Cancel,
    reply: mpsc::Sender<Result<Vec<Vec<f32>>, StepError>>,
}

/// Requests on their way through an encoder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Those that the encoder has begun.
    pub(crate) running: usize,
    /// Those that come after.
    pub(crate) waiting: usize,
}

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Waiting,
    Running,
}

/// Every request that has come and not ended yet, by its place.
#[derive(Default)]
struct Places {
    next: u64,
    taken: BTreeMap<u64, Standing>,
}

/// An encoder on a thread of its own.
pub(crate) struct EncoderQueue {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    places: Arc<Mutex<Places>>,
    /// Requests that there may be besides one.
    limit: usize,
    limits: EncoderLimits,
    /// Set where what runs shall not be finished.
    closing: Cancel,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A request's place in the queue, from its coming to its end; dropping it makes room.
pub(crate) struct Place<'a> {
    queue: &'a EncoderQueue,
    id: u64,
    jobs: mpsc::Sender<Job>,
    cancel: &'a Cancel,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutexes here guard is plain data that every holder leaves whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EncoderQueue {
    pub(crate) fn start(mut encoder: Box<dyn Encoder>, limit: usize) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel::<Job>();
        let (places, closing) = (Arc::new(Mutex::new(Places::default())), Cancel::new());
        let (own, stop) = (places.clone(), closing.clone());
        let limits = encoder.limits().clone();
        let thread = std::thread::Builder::new()
            .name("encoder".to_owned())
            .spawn(move || {
                while let Ok(first) = receiver.recv() {
                    let jobs: Vec<Job> = [first].into_iter().chain(receiver.try_iter()).collect();
                    begin(&own, &jobs);
                    let rows = run(encoder.as_mut(), &jobs, &stop);
                    reply(jobs, rows, &stop);
                }
            })
            .map_err(|source| Error::Io { what: "cannot start the encoder's thread".to_owned(), source })?;
        let (jobs, thread) = (Mutex::new(Some(sender)), Mutex::new(Some(thread)));
        Ok(Self { jobs, places, limit, limits, closing, thread })
    }

    /// Takes a place for a request that ends once `cancel` is set, or refuses it where there are too many.
    pub(crate) fn enter<'a>(&'a self, cancel: &'a Cancel) -> Result<Place<'a>, Error> {
        let jobs = lock(&self.jobs).clone().ok_or(Error::ShuttingDown)?;
        let mut places = lock(&self.places);
        if places.taken.len() > self.limit {
            return Err(Error::Overloaded { queued: places.taken.len() - 1, retry_after: RETRY });
        }
        let id = places.next;
        places.next += 1;
        places.taken.insert(id, Standing::Waiting);
        Ok(Place { queue: self, id, jobs, cancel })
    }

    pub(crate) fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    pub(crate) fn load(&self) -> Load {
        let places = lock(&self.places);
        let running = places.taken.values().filter(|&&standing| standing == Standing::Running).count();
        Load { running, waiting: places.taken.len() - running }
    }

    /// Takes no more requests, and ends the thread once those that came have finished or, with [`Drain::Now`], the batch
    /// that runs.
    pub(crate) fn shutdown(&self, drain: Drain) {
        if drain == Drain::Now {
            self.closing.cancel();
        }
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
        self.shutdown(Drain::Now);
    }
}

impl Place<'_> {
    /// Waits for the rows of each of `texts`, in their order. A request may come more than once, so that it need not hold
    /// all its texts and their rows.
    pub(crate) fn run(&self, texts: Vec<Item>) -> Result<Vec<Vec<f32>>, Error> {
        let (reply, answer) = mpsc::channel();
        let job = Job { place: self.id, texts, cancel: self.cancel.clone(), reply };
        self.jobs.send(job).map_err(|_| Error::ShuttingDown)?;
        loop {
            let heard = answer.recv_timeout(GLANCE);
            self.cancel.check()?;
            match heard {
                Ok(rows) => return Ok(rows?),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Error::ShuttingDown),
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(&self.queue.places).taken.remove(&self.id);
    }
}

/// Marks the requests of `jobs` as running; one that has left meanwhile has no place any more.
fn begin(places: &Mutex<Places>, jobs: &[Job]) {
    let mut places = lock(places);
    for job in jobs {
        if let Some(standing) = places.taken.get_mut(&job.place) {
            *standing = Standing::Running;
        }
    }
}

/// Whether nobody waits for a job any more.
fn is_gone(job: &Job, stop: &Cancel) -> bool {
    job.cancel.is_cancelled() || stop.is_cancelled()
}

/// Answers each job with its part. The sender of one that is gone is dropped, which tells whoever still listens.
fn reply(jobs: Vec<Job>, outcome: Result<Vec<Vec<f32>>, StepError>, stop: &Cancel) {
    let mut outcome = outcome.map(Vec::into_iter);
    for job in jobs {
        let answer = match &mut outcome {
            Ok(vectors) => Ok(vectors.by_ref().take(job.texts.len()).collect()),
            Err(error) => Err(error.clone()),
        };
        if !is_gone(&job, stop) {
            // A caller that has gone away needs no answer.
            let _ = job.reply.send(answer);
        }
    }
}

/// Runs all texts of all jobs, the longest first; gives all their rows in order, none for jobs that are gone.
fn run(encoder: &mut dyn Encoder, jobs: &[Job], stop: &Cancel) -> Result<Vec<Vec<f32>>, StepError> {
    let EncoderLimits { max_batch_tokens: budget, rows, .. } = *encoder.limits();
    let texts = jobs.iter().flat_map(|job| job.texts.iter().map(move |item| (job, item.text())));
    let texts: Vec<(&Job, Text<'_>)> = texts.collect();
    // The next one is the last here.
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&index| (texts[index].1.tokens.len(), Reverse(index)));
    let mut vectors = vec![Vec::new(); texts.len()];
    loop {
        order.retain(|&index| !is_gone(texts[index].0, stop));
        let Some(&longest) = order.last() else { return Ok(vectors) };
        let fits = (budget / texts[longest].1.tokens.len().max(1)).clamp(1, order.len());
        let batch = order.split_off(order.len() - fits);
        let input: Vec<Text<'_>> = batch.iter().map(|&index| texts[index].1).collect();
        let output = encoder.run(&input)?;
        let mut data = output.data.into_iter();
        for &index in &batch {
            vectors[index] = data.by_ref().take(rows.of(&texts[index].1) * output.width).collect();
        }
    }
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

    /// A request of one go.
    fn ask(queue: &EncoderQueue, texts: Vec<Item>) -> Result<Vec<Vec<f32>>, Error> {
        queue.enter(&Cancel::new())?.run(texts)
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
            assert_eq!(ask(&queue(32, 8, rows), texts.clone()).unwrap(), expected);
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
                let one = || ask(&queue, vec![vec![1].into()]);
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
            ask(&queue, vec![vec![1].into()]).unwrap();
            assert_eq!(queue.load(), Load::default());
        }
    }

    /// A queue whose encoder takes one text at a time, and when it is told to.
    fn held() -> (EncoderQueue, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let limits = EncoderLimits { max_length: 8, max_batch_tokens: 1, rows: Rows::Text, width: 1 };
        let ((begun, has_begun), (release, go_on)) = (mpsc::channel(), mpsc::channel());
        (EncoderQueue::start(Box::new(Held { limits, begun, go_on }), 4).unwrap(), has_begun, release)
    }

    #[test]
    fn a_request_that_nobody_waits_for_ends_between_batches() {
        let (queue, has_begun, release) = held();
        let cancel = Cancel::new();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| queue.enter(&cancel)?.run(vec![vec![1].into(); 100]));
            has_begun.recv().unwrap();
            let second = scope.spawn(|| ask(&queue, vec![vec![1].into()]));
            while queue.load() != (Load { running: 1, waiting: 1 }) {
                std::thread::yield_now();
            }
            cancel.cancel();
            assert!(matches!(first.join().unwrap(), Err(Error::Cancelled)));
            assert_eq!(queue.load(), Load { running: 0, waiting: 1 });
            // The batch that runs is the last of the first request; the next one is the second's.
            (0..2).for_each(|_| release.send(()).unwrap());
            assert_eq!(second.join().unwrap().unwrap(), [[1.0]]);
        });
        assert_eq!(has_begun.try_iter().count(), 1);
    }

    #[test]
    fn a_request_runs_from_its_first_texts_to_its_end() {
        let (queue, _begun, release) = held();
        (0..2).for_each(|_| release.send(()).unwrap());
        let cancel = Cancel::new();
        let place = queue.enter(&cancel).unwrap();
        assert_eq!(queue.load(), Load { running: 0, waiting: 1 });
        for _ in 0..2 {
            place.run(vec![vec![1].into()]).unwrap();
            assert_eq!(queue.load(), Load { running: 1, waiting: 0 });
        }
        drop(place);
        assert_eq!(queue.load(), Load::default());
    }

    #[test]
    fn who_closes_the_queue_at_once_waits_for_one_batch() {
        let (queue, has_begun, release) = held();
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| ask(&queue, vec![vec![1].into(); 100]));
            has_begun.recv().unwrap();
            let closer = scope.spawn(|| queue.shutdown(Drain::Now));
            while !queue.closing.is_cancelled() {
                std::thread::yield_now();
            }
            release.send(()).unwrap();
            assert!(matches!(caller.join().unwrap(), Err(Error::ShuttingDown)));
            closer.join().unwrap();
        });
    }

    #[test]
    fn a_closed_queue_says_so() {
        let queue = queue(32, 4, Rows::Text);
        queue.shutdown(Drain::Finish);
        assert!(matches!(ask(&queue, vec![vec![1].into()]), Err(Error::ShuttingDown)));
        assert_eq!(queue.load(), Load::default());
    }
}
