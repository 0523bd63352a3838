//! Queue of an encoder: divides the texts of waiting requests into batches of similar length, by their tokens.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use narthex_engine::{
    encoder::{Batching, Encoder, EncoderLimits, Text},
    executor::StepError,
    worker::Drain,
};
use narthex_spec::TokenId;
use narthex_text::tokenizer::Pair;
use parking_lot::Mutex;

use crate::{cancel::Cancel, energy::ENERGY, error::Error};

/// Delay before a client should retry when the queue is full.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A text of a request; see [`Text`] for the fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EncoderInput {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) second: usize,
    pub(crate) requested: Vec<usize>,
}

impl EncoderInput {
    fn text(&self) -> Text<'_> {
        Text { tokens: &self.tokens, second: self.second, requested: &self.requested }
    }
}

impl From<Vec<TokenId>> for EncoderInput {
    fn from(tokens: Vec<TokenId>) -> Self {
        Self { second: tokens.len(), tokens, requested: Vec::new() }
    }
}

impl From<&Pair> for EncoderInput {
    fn from(pair: &Pair) -> Self {
        Self { tokens: pair.tokens.clone(), second: pair.segment, requested: Vec::new() }
    }
}

/// Number of tokens that an encoder has computed for a request. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ComputedTokens(Arc<AtomicUsize>);

impl ComputedTokens {
    fn add(&self, tokens: usize) {
        self.0.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Output rows of each text of a job.
type TextRows = Vec<Vec<f32>>;

/// Texts of a request for one pass through the queue.
struct EncoderJob {
    request: u64,
    texts: Vec<EncoderInput>,
    cancel: Cancel,
    computed: ComputedTokens,
    reply: mpsc::Sender<Result<TextRows, Error>>,
}

impl EncoderJob {
    /// Returns whether the request was cancelled or the queue is closing, so that the result is not needed.
    fn is_abandoned(&self, closing: &Cancel) -> bool {
        self.cancel.is_cancelled() || closing.is_cancelled()
    }
}

impl Drop for EncoderJob {
    fn drop(&mut self) {
        // The caller reads only the first reply, so this one has no effect if another was sent.
        let _ = self.reply.send(Err(Error::ShuttingDown));
    }
}

/// Numbers of requests in an encoder's queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QueueLength {
    /// Number of requests with a batch that the encoder has started.
    pub(crate) running: usize,
    /// Number of requests that wait for the encoder.
    pub(crate) waiting: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestState {
    Waiting,
    Running,
}

/// Every request that has entered the queue and not left it.
#[derive(Default)]
struct Requests {
    next: u64,
    entered: BTreeMap<u64, RequestState>,
}

impl Requests {
    /// Marks the requests of `jobs` as running, except those that have left.
    fn start(&mut self, jobs: &[EncoderJob]) {
        for job in jobs {
            if let Some(state) = self.entered.get_mut(&job.request) {
                *state = RequestState::Running;
            }
        }
    }
}

/// An encoder that runs on its own thread.
pub(crate) struct EncoderQueue {
    jobs: Mutex<Option<mpsc::Sender<EncoderJob>>>,
    requests: Arc<Mutex<Requests>>,
    /// Maximum number of requests in the queue in addition to the first.
    limit: usize,
    limits: EncoderLimits,
    /// Set to abandon the queued jobs.
    closing: Cancel,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Place of a request in the queue. Dropping it frees the place.
pub(crate) struct QueuedRequest<'a> {
    queue: &'a EncoderQueue,
    id: u64,
    jobs: mpsc::Sender<EncoderJob>,
    cancel: &'a Cancel,
    computed: ComputedTokens,
}

impl EncoderQueue {
    pub(crate) fn start(mut encoder: Box<dyn Encoder>, limit: usize) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel::<EncoderJob>();
        let requests = Arc::new(Mutex::new(Requests::default()));
        let closing = Cancel::new();
        let thread_requests = requests.clone();
        let thread_closing = closing.clone();
        let limits = encoder.limits().clone();
        let thread = std::thread::Builder::new()
            .name("encoder".to_owned())
            .spawn(move || {
                while let Ok(first) = receiver.recv() {
                    let jobs: Vec<EncoderJob> = [first].into_iter().chain(receiver.try_iter()).collect();
                    thread_requests.lock().start(&jobs);
                    let rows = run(encoder.as_mut(), &jobs, &thread_closing);
                    reply(jobs, rows, &thread_closing);
                }
            })
            .map_err(|source| Error::Io { what: "cannot start the encoder's thread".to_owned(), source })?;
        let jobs = Mutex::new(Some(sender));
        let thread = Mutex::new(Some(thread));
        Ok(Self { jobs, requests, limit, limits, closing, thread })
    }

    /// Admits a request, or refuses it if the queue is full. The request ends once `cancel` is set. The tokens of its
    /// batches are added to `computed`, also those of a batch during which it ends.
    pub(crate) fn enter<'a>(
        &'a self,
        cancel: &'a Cancel,
        computed: &ComputedTokens,
    ) -> Result<QueuedRequest<'a>, Error> {
        let jobs = self.jobs.lock().clone().ok_or(Error::ShuttingDown)?;
        let mut requests = self.requests.lock();
        let entered = requests.entered.len();
        if entered > self.limit {
            return Err(Error::Overloaded { queued: entered - 1, retry_after: RETRY_AFTER });
        }
        let id = requests.next;
        requests.next += 1;
        requests.entered.insert(id, RequestState::Waiting);
        Ok(QueuedRequest { queue: self, id, jobs, cancel, computed: computed.clone() })
    }

    pub(crate) fn limits(&self) -> &EncoderLimits {
        &self.limits
    }

    pub(crate) fn length(&self) -> QueueLength {
        let requests = self.requests.lock();
        let running = requests.entered.values().filter(|&&state| state == RequestState::Running).count();
        QueueLength { running, waiting: requests.entered.len() - running }
    }

    /// Returns whether the thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.lock().as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Admits no more requests, and ends the thread after the admitted ones or, with [`Drain::Now`], after the running
    /// batch.
    pub(crate) fn shutdown(&self, drain: Drain) {
        if drain == Drain::Now {
            self.closing.cancel();
        }
        drop(self.jobs.lock().take());
        // The lock is released before the thread ends.
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the encoder's thread panicked");
        }
    }
}

impl Drop for EncoderQueue {
    fn drop(&mut self) {
        self.shutdown(Drain::Now);
    }
}

impl QueuedRequest<'_> {
    /// Waits for the rows of each of `texts`, in order. A request may call this several times, so that it need not hold
    /// all its texts and their rows at once.
    pub(crate) fn run(&self, texts: Vec<EncoderInput>) -> Result<TextRows, Error> {
        let (reply, replies) = mpsc::channel();
        let wake = reply.clone();
        let _callback = self.cancel.on_cancel(move || {
            // The request may have its reply already.
            let _ = wake.send(Err(Error::Cancelled));
        });
        let cancel = self.cancel.clone();
        let computed = self.computed.clone();
        let job = EncoderJob { request: self.id, texts, cancel, computed, reply };
        self.jobs.send(job).map_err(|_| Error::ShuttingDown)?;
        let rows = replies.recv().unwrap_or(Err(Error::ShuttingDown));
        self.cancel.check()?;
        rows
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.queue.requests.lock().entered.remove(&self.id);
    }
}

/// Sends each job its rows.
fn reply(jobs: Vec<EncoderJob>, outcome: Result<TextRows, StepError>, closing: &Cancel) {
    let mut outcome = outcome.map(Vec::into_iter);
    for job in jobs {
        let rows = match &mut outcome {
            Ok(rows) => Ok(rows.by_ref().take(job.texts.len()).collect()),
            Err(error) => Err(error.clone().into()),
        };
        if !job.is_abandoned(closing) {
            // The caller may have left in the meantime.
            let _ = job.reply.send(rows);
        }
    }
}

/// Runs all texts of all jobs, the longest first. Returns the rows of every text in order, empty for abandoned jobs.
fn run(encoder: &mut dyn Encoder, jobs: &[EncoderJob], closing: &Cancel) -> Result<TextRows, StepError> {
    let limits = encoder.limits().clone();
    let texts = jobs.iter().flat_map(|job| job.texts.iter().map(move |input| (job, input.text())));
    let texts: Vec<(&EncoderJob, Text<'_>)> = texts.collect();
    // Texts are in ascending order of length, because the next text is taken from the end.
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|&index| (texts[index].1.tokens.len(), Reverse(index)));
    let mut outputs = vec![Vec::new(); texts.len()];
    loop {
        order.retain(|&index| !texts[index].0.is_abandoned(closing));
        if order.is_empty() {
            return Ok(outputs);
        }
        let lengths = order.iter().rev().map(|&index| texts[index].1.tokens.len());
        let batch = order.split_off(order.len() - batch_size(&limits, lengths));
        let input: Vec<Text<'_>> = batch.iter().map(|&index| texts[index].1).collect();
        for &index in &batch {
            texts[index].0.computed.add(texts[index].1.tokens.len());
        }
        ENERGY.add_tokens(input.iter().map(|text| text.tokens.len()).sum());
        let output = encoder.run(&input)?;
        let mut data = output.data.into_iter();
        for &index in &batch {
            outputs[index] = data.by_ref().take(limits.rows.of(&texts[index].1) * output.width).collect();
        }
    }
}

/// Returns the number of the first texts that fit into a batch, and at least 1. `lengths` are those of the texts, which
/// do not ascend.
fn batch_size(limits: &EncoderLimits, lengths: impl Iterator<Item = usize>) -> usize {
    let mut longest = 0;
    let mut sum = 0;
    let fitting = lengths.enumerate().take_while(|&(index, length)| {
        longest = longest.max(length);
        sum += length;
        let tokens = match limits.batching {
            Batching::Padded => longest * (index + 1),
            Batching::Packed => sum,
        };
        tokens <= limits.max_batch_tokens
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use narthex_engine::encoder::{EncoderOutput, Rows};

    use super::*;

    /// Returns each text's length and first token, and refuses batches over its limit.
    struct Lengths(EncoderLimits);

    impl Encoder for Lengths {
        fn limits(&self) -> &EncoderLimits {
            &self.0
        }

        fn run(&mut self, texts: &[Text<'_>]) -> Result<EncoderOutput, StepError> {
            assert!(texts.len() == 1 || self.0.tokens_of(texts) <= self.0.max_batch_tokens);
            let row = |text: &Text<'_>| [text.tokens.len() as f32, text.tokens[0] as f32];
            let data = texts.iter().flat_map(|text| row(text).repeat(self.0.rows.of(text))).collect();
            Ok(EncoderOutput { data, width: 2 })
        }
    }

    /// Runs a request in one pass.
    fn ask(queue: &EncoderQueue, texts: Vec<EncoderInput>) -> Result<Vec<Vec<f32>>, Error> {
        queue.enter(&Cancel::new(), &ComputedTokens::default())?.run(texts)
    }

    fn queue(max_batch_tokens: usize, batching: Batching, rows: Rows) -> EncoderQueue {
        let limits = EncoderLimits { max_length: 100, max_batch_tokens, batching, rows, width: 2 };
        EncoderQueue::start(Box::new(Lengths(limits)), 8).unwrap()
    }

    #[test]
    fn rows_come_back_in_the_order_of_the_texts() {
        let text = |n: u32| EncoderInput {
            requested: vec![0; n as usize % 3],
            ..vec![n; (n as usize * 7) % 23 + 1].into()
        };
        let texts: Vec<EncoderInput> = (1..40).map(text).collect();
        for rows in [Rows::Text, Rows::Tokens, Rows::Requested] {
            let row =
                |t: &EncoderInput| [t.tokens.len() as f32, t.tokens[0] as f32].repeat(rows.of(&t.text()));
            let expected: Vec<Vec<f32>> = texts.iter().map(row).collect();
            for batching in [Batching::Padded, Batching::Packed] {
                assert_eq!(ask(&queue(32, batching, rows), texts.clone()).unwrap(), expected);
            }
        }
    }

    #[test]
    fn batches_have_as_many_texts_as_fit() {
        let check = |batching, lengths: &[usize], expect: usize| {
            let limits =
                EncoderLimits { max_length: 100, max_batch_tokens: 24, batching, rows: Rows::Text, width: 1 };
            let found = batch_size(&limits, lengths.iter().copied());
            assert_eq!(found, expect, "{batching:?} {lengths:?}");
        };
        for batching in [Batching::Padded, Batching::Packed] {
            check(batching, &[100, 1], 1);
            check(batching, &[24, 1], 1);
            check(batching, &[8, 8, 8, 8], 3);
            check(batching, &[5], 1);
        }
        check(Batching::Padded, &[12, 3, 3, 3, 3, 1], 2);
        check(Batching::Packed, &[12, 3, 3, 3, 3, 1], 5);
    }

    /// Signals the start of a run, and ends it on a signal.
    struct HeldEncoder {
        limits: EncoderLimits,
        begun: mpsc::Sender<()>,
        go_on: mpsc::Receiver<()>,
    }

    impl Encoder for HeldEncoder {
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
            let (queue, has_begun, release) = held(limit);
            std::thread::scope(|scope| {
                let one = || ask(&queue, vec![vec![1].into()]);
                let mut callers = vec![scope.spawn(one)];
                has_begun.recv().unwrap();
                callers.extend((0..limit).map(|_| scope.spawn(one)));
                while queue.length() != (QueueLength { running: 1, waiting: limit }) {
                    std::thread::yield_now();
                }
                let error = one().unwrap_err();
                assert!(matches!(error, Error::Overloaded { queued, .. } if queued == limit), "{error}");
                (0..=limit).for_each(|_| release.send(()).unwrap());
                assert!(callers.into_iter().all(|caller| caller.join().unwrap().is_ok()));
            });
            // After a caller has received its answer, there is room in the queue.
            release.send(()).unwrap();
            ask(&queue, vec![vec![1].into()]).unwrap();
            assert_eq!(queue.length(), QueueLength::default());
        }
    }

    /// Creates a queue for `most` waiting requests. Its encoder runs one text at a time, on a signal.
    fn held(most: usize) -> (EncoderQueue, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let limits = EncoderLimits {
            max_length: 8,
            max_batch_tokens: 1,
            batching: Batching::Padded,
            rows: Rows::Text,
            width: 1,
        };
        let ((begun, has_begun), (release, go_on)) = (mpsc::channel(), mpsc::channel());
        (
            EncoderQueue::start(Box::new(HeldEncoder { limits, begun, go_on }), most).unwrap(),
            has_begun,
            release,
        )
    }

    #[test]
    fn a_request_that_nobody_waits_for_ends_between_batches() {
        let (queue, has_begun, release) = held(4);
        let (cancel, computed) = (Cancel::new(), ComputedTokens::default());
        std::thread::scope(|scope| {
            let first = scope.spawn(|| queue.enter(&cancel, &computed)?.run(vec![vec![1].into(); 100]));
            has_begun.recv().unwrap();
            let second = scope.spawn(|| ask(&queue, vec![vec![1].into()]));
            while queue.length() != (QueueLength { running: 1, waiting: 1 }) {
                std::thread::yield_now();
            }
            cancel.cancel();
            assert!(matches!(first.join().unwrap(), Err(Error::Cancelled)));
            // The batch that had begun counts.
            assert_eq!(computed.get(), 1);
            assert_eq!(queue.length(), QueueLength { running: 0, waiting: 1 });
            // The batch that runs is the last of the first request; the next one is the second's.
            (0..2).for_each(|_| release.send(()).unwrap());
            assert_eq!(second.join().unwrap().unwrap(), [[1.0]]);
        });
        assert_eq!(has_begun.try_iter().count(), 1);
    }

    #[test]
    fn a_request_runs_from_its_first_texts_to_its_end() {
        let (queue, _begun, release) = held(4);
        (0..2).for_each(|_| release.send(()).unwrap());
        let cancel = Cancel::new();
        let place = queue.enter(&cancel, &ComputedTokens::default()).unwrap();
        assert_eq!(queue.length(), QueueLength { running: 0, waiting: 1 });
        for _ in 0..2 {
            place.run(vec![vec![1].into()]).unwrap();
            assert_eq!(queue.length(), QueueLength { running: 1, waiting: 0 });
        }
        drop(place);
        assert_eq!(queue.length(), QueueLength::default());
    }

    #[test]
    fn who_closes_the_queue_at_once_waits_for_one_batch() {
        let (queue, has_begun, release) = held(4);
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
        let queue = queue(32, Batching::Padded, Rows::Text);
        queue.shutdown(Drain::Finish);
        assert!(matches!(ask(&queue, vec![vec![1].into()]), Err(Error::ShuttingDown)));
        assert_eq!(queue.length(), QueueLength::default());
    }
}
