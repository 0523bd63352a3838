//! Progress of long jobs, as events. Only the command line displays them as bars.

use std::cell::Cell;

/// A progress event of a long job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A step of a job starts. The stages that follow belong to it.
    Step {
        /// Its number, from 1.
        number: usize,
        /// Number of steps of the job.
        of: usize,
        /// Title for people.
        title: String,
    },
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
    /// Nothing is counted.
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

/// The steps of a job. Each function that takes part plans its steps before the first one begins, so that every step
/// can state its number and the number of all. A job of a single step reports none.
pub struct JobSteps<'a> {
    sink: &'a dyn Sink,
    planned: Cell<usize>,
    begun: Cell<usize>,
}

impl<'a> JobSteps<'a> {
    /// Creates the steps of a job, without any.
    pub fn new(sink: &'a dyn Sink) -> Self {
        Self { sink, planned: Cell::new(0), begun: Cell::new(0) }
    }

    /// Returns the sink of the job.
    pub fn sink(&self) -> &'a dyn Sink {
        self.sink
    }

    /// Adds steps that will begin.
    pub fn plan(&self, steps: usize) {
        self.planned.set(self.planned.get() + steps);
    }

    /// Begins a step.
    pub fn begin(&self, title: impl Into<String>) {
        let number = self.begun.get() + 1;
        self.begun.set(number);
        let of = self.planned.get().max(number);
        if of > 1 {
            self.sink.event(Progress::Step { number, of, title: title.into() });
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn steps_number_themselves_unless_there_is_one() {
        let seen = Mutex::new(Vec::new());
        let sink = |event: Progress| {
            if let Progress::Step { number, of, title } = event {
                seen.lock().unwrap().push(format!("{number}/{of} {title}"));
            }
        };
        let steps = JobSteps::new(&sink);
        steps.plan(1);
        steps.plan(2);
        ["Fetch", "Compile", "Load"].into_iter().for_each(|title| steps.begin(title));
        let single = JobSteps::new(&sink);
        single.plan(1);
        single.begin("Load");
        assert_eq!(*seen.lock().unwrap(), ["1/3 Fetch", "2/3 Compile", "3/3 Load"]);
    }
}
