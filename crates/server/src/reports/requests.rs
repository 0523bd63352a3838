//! The last requests of the server: their models, devices, times and tokens, without texts. The page lists them.

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use axum::{
    extract::MatchedPath,
    http::{HeaderValue, Method, Request, StatusCode},
};
use narthex_gateway::request::{Summary, Times};
use narthex_spec::date::unix_seconds;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;

use super::tenths;
use crate::{
    http::access_log::request_line,
    traces::{RequestTrace, TracedGeneration, TracedRequest, Traces},
};

/// Number of requests that are kept.
const REQUESTS: usize = 200;

/// The last requests that have ended. Clones share them. Requests with GET and HEAD that no model answered are not part of
/// them, because the page reads lists often.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecentRequests {
    finished: Arc<Mutex<FinishedRequests>>,
    traces: Traces,
}

#[derive(Debug, Default)]
struct FinishedRequests {
    requests: VecDeque<FinishedRequest>,
    /// Number of requests since the server's start, with those that are no longer kept.
    count: u64,
}

/// The last requests that have ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RequestList {
    /// Newest first.
    requests: Vec<FinishedRequest>,
}

/// A request that has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
struct FinishedRequest {
    /// Number of the request in the list since the server's start. Clients may send an id twice.
    number: u64,
    /// Start in seconds since 1970.
    time: u64,
    /// Id in `x-request-id` and in the log.
    id: Option<String>,
    /// Method and path in the route table: `POST /v1/chat/completions`.
    route: String,
    /// Status; null if the client disconnected before the response.
    status: Option<u16>,
    /// Milliseconds until the end of the response.
    total_ms: f64,
    /// Device that computed the answer, as in `x-narthex-device`.
    device: Option<String>,
    #[serde(flatten)]
    work: RequestWork,
}

/// Work that a request has caused so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
struct RequestWork {
    /// Model that the request named, once it was in memory.
    model: Option<String>,
    /// Tokens that were read or generated.
    tokens: usize,
    /// Prompt tokens among them that were in the KV cache.
    cached_tokens: usize,
    /// Generated tokens among them.
    generated_tokens: usize,
    /// Milliseconds until the first token. Null without a generation, and if software stood in for an NPU.
    first_token_ms: Option<f64>,
    /// Generated tokens per second after the first one.
    tokens_per_second: Option<f64>,
    /// The last generation.
    #[serde(skip)]
    generation: Option<TracedGeneration>,
}

/// Work of a request that runs. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkRecord(Arc<Mutex<RequestWork>>);

impl WorkRecord {
    /// Adds the model that answers.
    pub(crate) fn add_model(&self, model: &str) {
        self.0.lock().model = Some(model.to_owned());
    }

    /// Adds tokens that were read or generated.
    pub(crate) fn add_tokens(&self, tokens: usize) {
        self.0.lock().tokens += tokens;
    }

    /// Adds a finished generation.
    pub(crate) fn add_generation(&self, summary: &Summary) {
        let mut work = self.0.lock();
        work.tokens += summary.prompt_tokens + summary.completion_tokens;
        work.cached_tokens += summary.cached_tokens;
        work.generated_tokens += summary.completion_tokens;
        work.generation = Some(TracedGeneration { end: SystemTime::now(), times: summary.times });
        if let Some(times) = summary.times {
            let Times { first_token, .. } = times;
            work.first_token_ms = Some(milliseconds(first_token));
            let rate = times.decode_rate(summary.completion_tokens);
            work.tokens_per_second = (rate > 0.0).then(|| tenths(rate));
        }
    }
}

/// A request that runs. It is listed when this is dropped: with the last part of its response, or at the end of the session
/// that it opens.
pub(crate) struct RunningRequest {
    requests: RecentRequests,
    start: Instant,
    request: Mutex<FinishedRequest>,
    work: WorkRecord,
    /// Set for a request without effect, unless a model answers it.
    is_read: bool,
    trace: Option<RequestTrace>,
}

impl RecentRequests {
    /// Creates an empty list, whose requests are traced.
    pub(crate) fn traced(traces: Traces) -> Self {
        Self { traces, ..Self::default() }
    }

    /// Starts the time of a request with this id.
    pub(crate) fn start<B>(
        &self,
        request: &Request<B>,
        id: Option<&HeaderValue>,
        work: WorkRecord,
    ) -> RunningRequest {
        let path = request.extensions().get::<MatchedPath>().map_or("unknown path", MatchedPath::as_str);
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let trace = self.traces.begin(request.headers());
        let request = FinishedRequest {
            time: unix_seconds(SystemTime::now()),
            id: id.and_then(text),
            route: request_line(request.method(), path),
            ..FinishedRequest::default()
        };
        let request = Mutex::new(request);
        RunningRequest { requests: self.clone(), start: Instant::now(), request, work, is_read, trace }
    }

    /// Returns the last requests that have ended.
    pub(crate) fn report(&self) -> RequestList {
        RequestList { requests: self.finished.lock().requests.iter().rev().cloned().collect() }
    }

    fn add(&self, request: FinishedRequest) {
        let FinishedRequests { requests, count } = &mut *self.finished.lock();
        if requests.len() == REQUESTS {
            requests.pop_front();
        }
        *count += 1;
        requests.push_back(FinishedRequest { number: *count, ..request });
    }
}

impl RunningRequest {
    /// Adds the status and the device of the response.
    pub(crate) fn respond(&self, status: StatusCode, device: Option<&HeaderValue>) {
        let mut request = self.request.lock();
        request.status = Some(status.as_u16());
        request.device = device.and_then(text);
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let total_ms = milliseconds(self.start.elapsed());
        let work = mem::take(&mut *self.work.0.lock());
        if self.is_read && work.model.is_none() {
            return;
        }
        let request = FinishedRequest { total_ms, work, ..mem::take(self.request.get_mut()) };
        if let Some(trace) = self.trace.take() {
            trace.end(&request.traced());
        }
        self.requests.add(request);
    }
}

impl FinishedRequest {
    fn traced(&self) -> TracedRequest<'_> {
        let work = &self.work;
        TracedRequest {
            route: &self.route,
            id: self.id.as_deref(),
            status: self.status,
            device: self.device.as_deref(),
            model: work.model.as_deref(),
            input_tokens: work.tokens.saturating_sub(work.generated_tokens),
            cached_tokens: work.cached_tokens,
            output_tokens: work.generated_tokens,
            generation: work.generation,
        }
    }
}

fn text(value: &HeaderValue) -> Option<String> {
    value.to_str().ok().map(str::to_owned)
}

/// Returns milliseconds with two decimals.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 100.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn finish(requests: &RecentRequests, method: &str, work: WorkRecord) {
        let request = Request::builder().method(method).uri("/secret?key=1").body(()).unwrap();
        let running = requests.start(&request, None, work);
        running.respond(StatusCode::OK, Some(&HeaderValue::from_static("cpu")));
    }

    #[test]
    fn a_request_is_listed_with_its_work_at_its_end() {
        let requests = RecentRequests::default();
        let work = WorkRecord::default();
        let request = Request::builder().method("POST").uri("/v1/completions").body(()).unwrap();
        let running = requests.start(&request, Some(&HeaderValue::from_static("req_1")), work.clone());
        work.add_model("tiny@w8");
        let times = Times {
            queued: Duration::ZERO,
            first_token: Duration::from_millis(250),
            total: Duration::from_millis(1250),
        };
        let summary = Summary {
            prompt_tokens: 7,
            cached_tokens: 6,
            completion_tokens: 5,
            times: Some(times),
            ..Summary::default()
        };
        work.add_generation(&summary);
        work.add_tokens(2);
        assert!(requests.report().requests.is_empty(), "the response has not ended");
        drop(running);

        let listed = json!(requests.report().requests[0]);
        assert_eq!((&listed["status"], &listed["device"]), (&json!(null), &json!(null)), "{listed}");
        let figures =
            ["model", "tokens", "cached_tokens", "generated_tokens", "first_token_ms", "tokens_per_second"];
        let expect = [json!("tiny@w8"), json!(14), json!(6), json!(5), json!(250.0), json!(4.0)];
        assert_eq!(figures.map(|name| listed[name].clone()), expect, "{listed}");
    }

    #[test]
    fn the_list_is_bounded_and_states_no_address() {
        let requests = RecentRequests::default();
        for _ in 0..REQUESTS + 5 {
            finish(&requests, "POST", WorkRecord::default());
            finish(&requests, "GET", WorkRecord::default());
        }
        finish(&requests, &"M".repeat(60_000), WorkRecord::default());
        let RequestList { requests } = requests.report();
        assert_eq!(requests.len(), REQUESTS);
        let numbers: Vec<u64> = requests.iter().map(|request| request.number).collect();
        assert!(numbers.is_sorted_by(|newer, older| *newer == older + 1), "{numbers:?}");
        let routes = [&requests[0].route, &requests[1].route];
        assert_eq!(routes, ["MMMMMMMMMMMMMMMMMMMM unknown path", "POST unknown path"]);
        assert_eq!((requests[1].status, requests[1].device.as_deref()), (Some(200), Some("cpu")));
    }
}
