//! `POST /api/pull`: fetches and compiles a model, with progress. The caller's rights decide what may be fetched.

use std::{collections::BTreeMap, convert::Infallible};

use axum::{
    Json,
    body::{Body as HttpBody, Bytes},
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use narthex_gateway::Cancel;
use narthex_spec::{
    ProgressSink,
    progress::{Progress, Unit},
};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, task::JoinHandle};

use super::models::NamedModel;
use crate::{
    app::App,
    error::ApiError,
    protocol::{
        blocking::CancelOnDrop,
        body::{Body, FromBody},
        fields::BodyFields,
        ignored::IgnoredParameters,
    },
};

/// Maximum number of lines that wait for the client. Further lines are dropped.
const MAX_LINES: usize = 64;

/// Body of the request.
#[derive(Debug, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["model"]}, {"required": ["name"]}]))]
pub(crate) struct PullBody {
    #[schemars(flatten)]
    model: NamedModel,
    stream: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct StreamSwitch {
    stream: Option<bool>,
}

impl FromBody for PullBody {
    fn read(fields: &BodyFields<'_>, _: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let model: NamedModel = fields.read()?;
        let StreamSwitch { stream } = fields.read()?;
        fields.skip(&["insecure"]);
        fields.refuse_unread()?;
        model.check()?;
        Ok(Self { model, stream })
    }
}

/// A line of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct PullLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// Part of the work to which `completed` and `total` apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Bytes of the part.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// Completed bytes of the part.
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl PullLine {
    pub(super) fn status(status: impl Into<String>) -> Self {
        Self { status: Some(status.into()), digest: None, total: None, completed: None, error: None }
    }

    /// Returns the line of a stage whose size is known.
    fn part(stage: String, total: u64, completed: u64) -> Self {
        Self {
            digest: Some(stage.clone()),
            total: Some(total),
            completed: Some(completed),
            ..Self::status(stage)
        }
    }

    fn end(outcome: &Result<(), ApiError>) -> Self {
        match outcome {
            Ok(()) => Self::status("success"),
            Err(error) => Self { status: None, error: Some(error.message()), ..Self::status("") },
        }
    }

    pub(super) fn bytes(&self) -> Bytes {
        // Serialising strings and numbers to JSON cannot fail.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line.into()
    }
}

/// Converts progress to lines.
struct LineSink {
    lines: mpsc::Sender<PullLine>,
    /// Total bytes of the running stages, by name.
    totals: Mutex<BTreeMap<String, u64>>,
}

impl LineSink {
    fn line(&self, progress: Progress) -> Option<PullLine> {
        let mut totals = self.totals.lock();
        match progress {
            Progress::Step { title, .. } => Some(PullLine::status(title)),
            Progress::Started { stage, unit: Unit::Bytes, total: Some(total) } => {
                totals.insert(stage.clone(), total);
                Some(PullLine::part(stage, total, 0))
            }
            Progress::Started { stage, .. } => Some(PullLine::status(stage)),
            Progress::Advanced { stage, done } => {
                let total = *totals.get(&stage)?;
                Some(PullLine::part(stage, total, done.min(total)))
            }
            Progress::Finished { stage } => {
                let total = totals.remove(&stage)?;
                Some(PullLine::part(stage, total, total))
            }
            Progress::Note(text) => Some(PullLine::status(text)),
        }
    }
}

impl ProgressSink for LineSink {
    fn event(&self, progress: Progress) {
        if let Some(line) = self.line(progress) {
            // If the client is slow, lines are dropped, so that the work does not wait.
            let _ = self.lines.try_send(line);
        }
    }
}

/// A running pull. Dropping it cancels the pull.
struct RunningPull {
    lines: mpsc::Receiver<PullLine>,
    job: Option<JoinHandle<Result<(), ApiError>>>,
    _cancel: CancelOnDrop,
}

impl RunningPull {
    /// Starts the pull of a model, within the caller's rights.
    async fn start(app: &App, model: String) -> Result<Self, ApiError> {
        let gateway = app.gateway.clone();
        let pull = app.shared.jobs.run(move || gateway.request_pull(&model)).await?;
        let (sender, lines) = mpsc::channel(MAX_LINES);
        let cancel = Cancel::new();
        let guard = CancelOnDrop(cancel.clone());
        let jobs = app.shared.jobs.clone();
        let job = tokio::spawn(async move {
            let run = jobs.run(move || {
                let sink = LineSink { lines: sender, totals: Mutex::default() };
                sink.event(Progress::Note("pulling manifest".to_owned()));
                pull.run(&sink, &cancel).map(drop)
            });
            run.await
        });
        Ok(Self { lines, job: Some(job), _cancel: guard })
    }

    /// Returns the next line; `None` after the last one.
    async fn next(&mut self) -> Option<PullLine> {
        if let Some(line) = self.lines.recv().await {
            return Some(line);
        }
        Some(PullLine::end(&self.outcome().await?))
    }

    /// Waits for the end of the pull; `None` if the outcome was already returned.
    async fn outcome(&mut self) -> Option<Result<(), ApiError>> {
        let ended = self.job.take()?.await;
        Some(ended.unwrap_or_else(|_| Err(ApiError::panicked())))
    }
}

/// Handles a request.
pub(crate) async fn create(app: App, body: Body<PullBody>) -> Result<Response, ApiError> {
    let Body { request: PullBody { model, stream }, reservation: _reservation, .. } = body;
    let mut pull = RunningPull::start(&app, model.into_name()).await?;
    if stream == Some(false) {
        while pull.lines.recv().await.is_some() {}
        pull.outcome().await.unwrap_or(Ok(()))?;
        return Ok(Json(PullLine::end(&Ok(()))).into_response());
    }
    let lines = futures::stream::unfold(pull, |mut pull| async move {
        let line = pull.next().await?;
        Some((Ok::<_, Infallible>(line.bytes()), pull))
    });
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], HttpBody::from_stream(lines)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_becomes_lines() {
        let (lines, _receiver) = mpsc::channel(1);
        let sink = LineSink { lines, totals: Mutex::default() };
        let stage = || "weights".to_owned();
        let counts = |line: Option<PullLine>| line.map(|line| (line.completed, line.total));
        let started = Progress::Started { stage: stage(), unit: Unit::Bytes, total: Some(9) };
        assert_eq!(counts(sink.line(started)), Some((Some(0), Some(9))));
        let advanced = Progress::Advanced { stage: stage(), done: 4 };
        assert_eq!(counts(sink.line(advanced)), Some((Some(4), Some(9))));
        assert_eq!(counts(sink.line(Progress::Finished { stage: stage() })), Some((Some(9), Some(9))));
        assert_eq!(sink.line(Progress::Advanced { stage: stage(), done: 1 }), None);
        let packed = Progress::Started { stage: "packing".to_owned(), unit: Unit::Nothing, total: None };
        assert_eq!(sink.line(packed), Some(PullLine::status("packing")));
    }
}
