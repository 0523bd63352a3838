//! Progress of long jobs, as events. Only the command line displays them as bars.

/// A progress event of a long job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A stage starts.
    Started {
        /// Identifier of the stage in later events, unique among the running stages.
        stage: String,
        /// Unit of the counts.
        unit: Unit,
        /// Final amount of the stage, if known.
        total: Option<u64>,
    },
    /// A stage has reached `done`.
    Advanced {
        /// The stage.
        stage: String,
        /// Amount done since the stage started.
        done: u64,
    },
    /// A stage is complete.
    Finished {
        /// The stage.
        stage: String,
    },
    /// A message for the user.
    Note(String),
}

/// Unit of a stage's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, shown as MB.
    Bytes,
    /// Countable things: tensors, layers.
    Items,
    /// No count; the stage only takes time.
    Nothing,
}

/// Receiver of progress events. It must be fast, and may be called from any thread.
pub trait Sink: Send + Sync {
    /// Receives one event.
    fn event(&self, event: Progress);
}

/// A receiver that drops every event.
pub struct Quiet;

impl Sink for Quiet {
    fn event(&self, _: Progress) {}
}

impl<F: Fn(Progress) + Send + Sync> Sink for F {
    fn event(&self, event: Progress) {
        self(event);
    }
}

/// A running stage: reports `Started` on creation and `Finished` when dropped.
pub struct Stage<'a> {
    sink: &'a dyn Sink,
    stage: String,
}

impl<'a> Stage<'a> {
    /// Starts a stage.
    pub fn start(sink: &'a dyn Sink, stage: impl Into<String>, unit: Unit, total: Option<u64>) -> Self {
        let stage = stage.into();
        sink.event(Progress::Started { stage: stage.clone(), unit, total });
        Self { sink, stage }
    }

    /// Reports the amount done since the stage started.
    pub fn advance(&self, done: u64) {
        self.sink.event(Progress::Advanced { stage: self.stage.clone(), done });
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.sink.event(Progress::Finished { stage: self.stage.clone() });
    }
}
