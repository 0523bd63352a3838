//! Progress of long jobs, as events; only the command line turns them into bars.

/// One thing that a long job reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A stage begins. `total` counts bytes or items, where known.
    Started {
        /// Identifies the stage in the events that follow; unique among the stages under way.
        stage: String,
        /// Unit of the counts.
        unit: Unit,
        /// The amount at which the stage is complete, where known.
        total: Option<u64>,
    },
    /// A stage has come as far as `done`.
    Advanced {
        /// The stage.
        stage: String,
        /// Amount done since the stage began.
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

/// Receives progress; must be quick, and may be called from any thread.
pub trait Sink: Send + Sync {
    /// Takes one event.
    fn event(&self, event: Progress);
}

/// Drops every event.
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
    /// Begins a stage.
    pub fn start(sink: &'a dyn Sink, stage: impl Into<String>, unit: Unit, total: Option<u64>) -> Self {
        let stage = stage.into();
        sink.event(Progress::Started { stage: stage.clone(), unit, total });
        Self { sink, stage }
    }

    /// Reports how far the stage has come since it began.
    pub fn advance(&self, done: u64) {
        self.sink.event(Progress::Advanced { stage: self.stage.clone(), done });
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.sink.event(Progress::Finished { stage: self.stage.clone() });
    }
}
