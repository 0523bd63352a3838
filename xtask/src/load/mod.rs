//! `cargo xtask load`: runs several clients against a server with models that chat, embed, see, hear, transcribe and speak,
//! for minutes or for days.
//!
//! No answer may be wrong, and memory, threads, connections and sequences must not leak. The clients of [`traffic`]
//! also disconnect early and send incomplete requests, malformed requests and requests for missing resources.
//! Meanwhile, one model after another is unloaded, which the next request loads again, and the settings are read again.
//! The server is built with the profile of tests, and no times are reported.

mod media;
mod traffic;

use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::{Args, value_parser};
use parking_lot::Mutex;
use strum::VariantArray;
use xtask_tools::{
    http::{Disconnect, Request, send},
    record::{self, RecordArgs},
    server::Server,
    session::Session,
    terminal,
    usage::{Usage, quarters},
    workspace::Workspace,
};

use crate::{test, tiny_models};

use traffic::{CHAT, Client, EMBED, GreedyAnswers, RequestKind};

/// Number of concurrent clients.
const CLIENTS: u64 = 32;

/// Models of the server.
const MODELS: [&str; 5] = [CHAT, EMBED, tiny_models::SEES, tiny_models::HEARS, media::SPEAKS];

/// Time between two reloads.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Memory in MiB for the keys and values of a model. Those of earlier conversations use the rest of it, so that a small budget
/// is full before usage is compared.
const KV_BUDGET: &str = "192";

/// Maximum growth of memory from the second to the last quarter, as a share.
const GROWTH: f64 = 0.02;

/// Maximum time in which a server finishes the requests of disconnected clients.
const DRAIN_TIME: Duration = Duration::from_secs(60);

/// Arguments of `cargo xtask load`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub(crate) struct LoadArgs {
    /// Duration of the load in minutes.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u64).range(1..100_000))]
    minutes: u64,
    #[command(flatten)]
    output: RecordArgs,
}

/// Counters of a run.
#[derive(Default)]
struct Counts {
    requests: [AtomicU64; RequestKind::VARIANTS.len()],
    /// Models that were unloaded, each with a reload of the settings.
    reloads: AtomicU64,
    failed: AtomicU64,
    /// Requests that were refused because the server was full.
    refused: AtomicU64,
    /// Descriptions of the first failures.
    failures: Mutex<Vec<String>>,
}

impl Counts {
    /// Counts a failure.
    fn fail(&self, what: &str, error: &anyhow::Error) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let mut failures = self.failures.lock();
        if failures.len() < 10 {
            failures.push(format!("{what}: {error:#}"));
        }
    }
}

/// Runs a server under load.
pub(crate) fn run(workspace: &Workspace, args: LoadArgs) -> anyhow::Result<()> {
    let (commit, session) = test::prepare(workspace)?;
    let log = workspace.target.join("load.log");
    let program = session.build_narthex()?;
    tiny_models::narthex(&session, &program, &["pull", media::SPEAKS])?;
    tiny_models::with(&session, &program, || run_server(workspace, args, &session, &log, &commit))
}

/// Runs a server with the installed models under load.
fn run_server(
    workspace: &Workspace,
    args: LoadArgs,
    session: &Session<'_>,
    log: &Path,
    commit: &str,
) -> anyhow::Result<()> {
    let mut arguments: Vec<&str> = MODELS.iter().flat_map(|model| ["--model", model]).collect();
    arguments.extend(["--kv-budget", KV_BUDGET]);
    let server = Server::start(session, log, &arguments)?;
    let counts = Counts::default();
    let samples =
        run_clients(&server, Duration::from_secs(60 * args.minutes), &counts).with_context(|| {
            format!("last lines of the server's log ({}):\n{}", log.display(), server.last_lines())
        })?;
    let drained = wait_until_drained(&server);
    let page = report(commit, &samples, &counts);
    terminal::line(&page);
    if let Some(first) = counts.failures.lock().first() {
        bail!("{} requests had wrong answers, the first: {first}", counts.failed.into_inner());
    }
    drained?;
    check_growth(&samples)?;
    if args.output.record {
        record::write(workspace, record::BENCH, "load", &page)?;
    }
    Ok(())
}

/// Runs the clients for `time`. Returns the server's usage, sampled every second.
fn run_clients(server: &Server, time: Duration, counts: &Counts) -> anyhow::Result<Vec<Usage>> {
    let greedy = GreedyAnswers::collect(&server.address)?;
    for &kind in RequestKind::VARIANTS {
        Client::new(0).send(&server.address, kind, &greedy, &counts.refused)?;
    }
    warm_up(&server.address, &greedy)?;
    let (over, start) = (AtomicBool::new(false), Instant::now());
    let mut samples = Vec::new();
    let outcome = thread::scope(|scope| {
        for seed in 1..=CLIENTS {
            let (over, greedy) = (&over, &greedy);
            scope.spawn(move || run_client(&server.address, Client::new(seed), greedy, counts, over));
        }
        scope.spawn(|| reload_models(&server.address, counts, &over));
        let mut sample = || -> anyhow::Result<()> {
            while start.elapsed() < time {
                thread::sleep(Duration::from_secs(1));
                samples.push(Usage::of(server.id())?);
                if samples.len().is_multiple_of(60) {
                    let requests: u64 =
                        counts.requests.iter().map(|count| count.load(Ordering::Relaxed)).sum();
                    terminal::line(format!(
                        "{} min: {requests} requests, {:?}",
                        samples.len() / 60,
                        samples.last()
                    ));
                }
            }
            Ok(())
        };
        let outcome = sample();
        over.store(true, Ordering::Relaxed);
        outcome
    });
    outcome.map(|()| samples)
}

/// Sends the longest requests from all clients at once, so that the cache of every slot has its final size before usage
/// is sampled. A full server may refuse some of them.
fn warm_up(address: &str, greedy: &GreedyAnswers) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| longest(address, greedy))).collect();
        clients.into_iter().try_for_each(|client| match client.join() {
            Ok(outcome) => outcome,
            Err(_) => bail!("a client panicked"),
        })
    })
}

/// Sends the longest greedy request, which is checked, and the longest prompt.
fn longest(address: &str, greedy: &GreedyAnswers) -> anyhow::Result<()> {
    greedy.check_longest(address)?;
    traffic::send_longest_prompt(address)
}

/// Sends requests of one client until the run is over.
fn run_client(address: &str, mut client: Client, greedy: &GreedyAnswers, counts: &Counts, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let kind = client.next();
        counts.requests[kind as usize].fetch_add(1, Ordering::Relaxed);
        if let Err(error) = client.send(address, kind, greedy, &counts.refused) {
            counts.fail(kind.about(), &error);
        }
    }
}

/// Unloads one model after another, which the next request loads again, and lets the server read its settings again, until
/// the run is over.
fn reload_models(address: &str, counts: &Counts, over: &AtomicBool) {
    for model in MODELS.into_iter().cycle() {
        let start = Instant::now();
        while start.elapsed() < RELOAD_INTERVAL {
            if over.load(Ordering::Relaxed) {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
        match traffic::reload(address, model) {
            Ok(()) => drop(counts.reloads.fetch_add(1, Ordering::Relaxed)),
            Err(error) => counts.fail("a reload", &error),
        }
    }
}

/// Waits until the server has no requests, sequences or streams left.
fn wait_until_drained(server: &Server) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let metrics = Request { method: "GET", path: "/metrics", body: b"" };
        let text = send(&server.address, metrics, Disconnect::AfterAnswer)?.body;
        let left: Vec<&str> = text.lines().filter(|line| is_unfinished(line)).collect();
        if left.is_empty() {
            return Ok(());
        }
        if start.elapsed() > DRAIN_TIME {
            bail!("{DRAIN_TIME:?} after the last client, the server still has {}", left.join(", "));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Returns true if a line of metrics counts unfinished work.
fn is_unfinished(line: &str) -> bool {
    let names = ["narthex_requests_running", "narthex_requests_waiting", "narthex_open_streams"];
    names.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0")
}

/// Fails if memory, threads or files of the server keep growing.
fn check_growth(samples: &[Usage]) -> anyhow::Result<()> {
    let [_, second, _, last] = quarters(samples);
    let grown = last.anonymous as f64 / second.anonymous.max(1) as f64 - 1.0;
    if grown > GROWTH {
        bail!(
            "memory grew from {} to {} bytes between the second quarter and the last, by more than {} %",
            second.anonymous,
            last.anonymous,
            GROWTH * 100.0
        );
    }
    let most = |usage: Usage| usage.threads + 2 * CLIENTS;
    if last.threads > most(second) || last.files > second.files + 2 * CLIENTS {
        bail!("threads or open files keep growing: {second:?} in the second quarter, {last:?} in the last");
    }
    Ok(())
}

fn report(commit: &str, samples: &[Usage], counts: &Counts) -> String {
    let requests = |kind: RequestKind| counts.requests[kind as usize].load(Ordering::Relaxed);
    let kinds: String = RequestKind::VARIANTS
        .iter()
        .map(|&kind| format!("| {} | {} |\n", kind.about(), requests(kind)))
        .collect();
    let names = ["first", "second", "third", "last"];
    let rows: String = names
        .iter()
        .zip(quarters(samples))
        .map(|(name, usage)| {
            let megabytes = usage.anonymous as f64 / 1e6;
            format!("| {name} | {megabytes:.1} MB | {} | {} |\n", usage.threads, usage.files)
        })
        .collect();
    format!(
        "# A server under load, {}\n\nCommit {commit}; narthex {}, onnxruntime 1.31.1; {}; {CLIENTS} clients at once for {} minutes; {CHAT}, \
         {EMBED}, a tiny Gemma 3n, a tiny Whisper and the voice hibari; the build that tests run. {} requests had wrong answers, {} were refused with 429. Meanwhile, {} times, a \
         model was unloaded, which the next request loaded again, and the settings were read again. After the clients had disconnected, the server had no sequence, no \
         waiting request and no stream left.\n\n| Requests | |\n|---|---:|\n{kinds}\n\
         Resources of the server, sampled every second. Each row has the medians of a quarter of the run. Memory is RssAnon; the last quarter may be at most {} % above the second.\n\n\
         | Quarter | Memory | Threads | Open files |\n|---|---:|---:|---:|\n{rows}",
        record::today(),
        env!("CARGO_PKG_VERSION"),
        record::platform(),
        (samples.len() + 30) / 60,
        counts.failed.load(Ordering::Relaxed),
        counts.refused.load(Ordering::Relaxed),
        counts.reloads.load(Ordering::Relaxed),
        GROWTH * 100.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let check = |line: &str, minutes, record| {
            let expect = LoadArgs { minutes, output: RecordArgs { record } };
            assert_eq!(crate::parse(line).unwrap(), crate::Command::Load(expect));
        };
        check("load", 10, false);
        check("load --record --minutes 90", 90, true);
        for line in ["load --minutes 0", "load --minutes x", "load --minutes -1", "load --hours 1"] {
            assert!(crate::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn unfinished_work_is_found_in_the_metrics() {
        assert!(is_unfinished(r#"narthex_requests_running{model="m",scheme="w8"} 1"#));
        assert!(is_unfinished("narthex_open_streams 2"));
        assert!(!is_unfinished("narthex_open_streams 0"));
        assert!(!is_unfinished("narthex_http_requests_total 7"));
    }

    #[test]
    fn growth_is_an_error() {
        let series = |step: u64, threads: u64| -> Vec<Usage> {
            (0..40)
                .map(|at| Usage { anonymous: (100 << 20) + at * step, threads: 9 + at * threads, files: 20 })
                .collect()
        };
        assert!(check_growth(&series(1000, 0)).is_ok());
        assert!(check_growth(&series(1 << 20, 0)).unwrap_err().to_string().contains("memory grew"));
        assert!(check_growth(&series(0, 5)).unwrap_err().to_string().contains("threads or open files"));
    }
}
