//! `cargo xtask load`: a server with a chat and an embedding model under several clients at once, for minutes or for days.
//! No answer may be wrong, and nothing may be left behind: memory that grows with the requests, threads, connections,
//! sequences.
//!
//! Clients stream and go, send half a request, send what is no request, and ask for what is not there ([`work`]). The build
//! is the one that tests run; nothing here is a time.

mod client;
mod watch;
mod work;

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use crate::{
    stamp::{self, Keep},
    terminal,
    test::{self, server::Server},
    workspace::Workspace,
};

use client::{Request, Until, ask};
use watch::{Look, quarters};
use work::{CHAT, Client, EMBED, Kind};

/// Clients at a time.
const CLIENTS: u64 = 6;

/// Bytes by which memory may differ between the second and the last quarter.
const GROWTH: u64 = 16 << 20;

/// How long a server has to end what clients have left.
const REST: Duration = Duration::from_secs(60);

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    /// How long the load lasts.
    time: Duration,
    /// What becomes of the table.
    keep: Keep,
}

/// What a run counted.
#[derive(Default)]
struct Counts {
    asked: [AtomicU64; Kind::ALL.len()],
    failed: AtomicU64,
    /// The first failures, in words.
    words: Mutex<Vec<String>>,
}

impl Options {
    /// Reads the words behind `load`.
    pub(crate) fn parse(mut words: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self { time: Duration::from_secs(600), keep: Keep::Nothing };
        loop {
            words = match words {
                [] => return Ok(options),
                ["--minutes", minutes, rest @ ..] => {
                    let minutes =
                        minutes.parse::<u64>().ok().filter(|minutes| (1..100_000).contains(minutes));
                    let minutes = minutes.context("--minutes: expected a whole number above zero")?;
                    options.time = Duration::from_secs(60 * minutes);
                    rest
                }
                ["--record", rest @ ..] => {
                    options.keep = Keep::Record;
                    rest
                }
                [other, ..] => bail!("`load` has no {other:?}: expected --minutes N or --record"),
            }
        }
    }
}

/// Runs a server under load.
pub(crate) fn run(workspace: &Workspace, options: Options) -> anyhow::Result<()> {
    let (commit, session) = test::prepared(workspace)?;
    let log = workspace.target.join("load.log");
    let server = Server::start(&session, &log, &["--model", CHAT, "--model", EMBED])?;
    let counts = Counts::default();
    let looks = watched(&server, options.time, &counts)
        .with_context(|| format!("the server's last words ({}):\n{}", log.display(), server.last_words()))?;
    let left = left_behind(&server);
    let page = report(&commit, &looks, &counts);
    terminal::line(&page);
    if let Some(words) = counts.words.lock().unwrap_or_else(PoisonError::into_inner).first() {
        bail!(
            "{} requests were not answered as they must be, the first: {words}",
            counts.failed.into_inner()
        );
    }
    left?;
    bounded(&looks)?;
    if options.keep == Keep::Record {
        stamp::keep(workspace, stamp::BENCH, "load", &page)?;
    }
    Ok(())
}

/// Lets clients ask until the time is over; gives what was seen of the server every second.
fn watched(server: &Server, time: Duration, counts: &Counts) -> anyhow::Result<Vec<Look>> {
    for kind in Kind::ALL {
        Client::new(0).ask(&server.address, kind)?;
    }
    let (over, begun) = (AtomicBool::new(false), Instant::now());
    let mut looks = Vec::new();
    let outcome = thread::scope(|scope| {
        for seed in 1..=CLIENTS {
            let over = &over;
            scope.spawn(move || busy(&server.address, seed, counts, over));
        }
        let mut look = || -> anyhow::Result<()> {
            while begun.elapsed() < time {
                thread::sleep(Duration::from_secs(1));
                looks.push(Look::at(server.id())?);
                if looks.len().is_multiple_of(60) {
                    let asked: u64 = counts.asked.iter().map(|asked| asked.load(Ordering::Relaxed)).sum();
                    terminal::line(format!("{} min: {asked} requests, {:?}", looks.len() / 60, looks.last()));
                }
            }
            Ok(())
        };
        let outcome = look();
        over.store(true, Ordering::Relaxed);
        outcome
    });
    outcome.map(|()| looks)
}

/// One client.
fn busy(address: &str, seed: u64, counts: &Counts, over: &AtomicBool) {
    let mut client = Client::new(seed);
    while !over.load(Ordering::Relaxed) {
        let kind = client.next();
        counts.asked[kind as usize].fetch_add(1, Ordering::Relaxed);
        if let Err(error) = client.ask(address, kind) {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            let mut words = counts.words.lock().unwrap_or_else(PoisonError::into_inner);
            if words.len() < 10 {
                words.push(format!("{}: {error:#}", kind.about()));
            }
        }
    }
}

/// Waits until the server has ended what clients have left.
fn left_behind(server: &Server) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let metrics = Request { method: "GET", path: "/metrics", body: b"" };
        let told = ask(&server.address, metrics, Until::End)?.body;
        let left: Vec<&str> = told.lines().filter(|line| is_left(line)).collect();
        if left.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > REST {
            bail!("{REST:?} after the last client, the server still has {}", left.join(", "));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Whether a line of metrics tells of work that is not over.
fn is_left(line: &str) -> bool {
    let names = ["narthex_requests_running", "narthex_requests_waiting", "narthex_open_streams"];
    names.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0")
}

/// Refuses a server that goes on growing.
fn bounded(looks: &[Look]) -> anyhow::Result<()> {
    let [_, second, _, last] = quarters(looks);
    if last.anonymous > second.anonymous + GROWTH {
        bail!(
            "memory grew from {} to {} bytes between the second quarter and the last; at most {GROWTH} more are allowed",
            second.anonymous,
            last.anonymous
        );
    }
    let most = |look: Look| look.threads + 2 * CLIENTS;
    if last.threads > most(second) || last.files > second.files + 2 * CLIENTS {
        bail!("threads or open files go on growing: {second:?} in the second quarter, {last:?} in the last");
    }
    Ok(())
}

fn report(commit: &str, looks: &[Look], counts: &Counts) -> String {
    let asked = |kind: Kind| counts.asked[kind as usize].load(Ordering::Relaxed);
    let kinds: String =
        Kind::ALL.iter().map(|&kind| format!("| {} | {} |\n", kind.about(), asked(kind))).collect();
    let names = ["first", "second", "third", "last"];
    let rows: String = names
        .iter()
        .zip(quarters(looks))
        .map(|(name, look)| {
            let megabytes = look.anonymous as f64 / 1e6;
            format!("| {name} | {megabytes:.1} MB | {} | {} |\n", look.threads, look.files)
        })
        .collect();
    format!(
        "# A server under load, {}\n\nCommit {commit}; narthex {}, onnxruntime 1.31.1; {}; {CLIENTS} clients at once for {} minutes; {CHAT} and \
         {EMBED}; the build that tests run. {} requests were not answered as they must be. When the clients had gone, no sequence, no \
         waiting request and no stream was left, else this would not stand here.\n\n| Requests | |\n|---|---:|\n{kinds}\n\
         What the server held, medians of each quarter, looked at every second (RssAnon; bound: the last at most {} MiB above the second):\n\n\
         | Quarter | Memory | Threads | Open files |\n|---|---:|---:|---:|\n{rows}",
        stamp::today(),
        env!("CARGO_PKG_VERSION"),
        stamp::platform(),
        (looks.len() + 30) / 60,
        counts.failed.load(Ordering::Relaxed),
        GROWTH >> 20,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        let check = |words: &[&str], time, keep| {
            assert_eq!(Options::parse(words).unwrap(), Options { time, keep });
        };
        check(&[], minutes(10), Keep::Nothing);
        check(&["--record", "--minutes", "90"], minutes(90), Keep::Record);
        for words in [["--minutes", "0"], ["--minutes", "x"], ["--minutes", "-1"], ["--hours", "1"]] {
            assert!(Options::parse(&words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn what_is_left_is_seen_in_the_metrics() {
        assert!(is_left(r#"narthex_requests_running{model="m",scheme="w8"} 1"#));
        assert!(is_left("narthex_open_streams 2"));
        assert!(!is_left("narthex_open_streams 0"));
        assert!(!is_left("narthex_http_requests_total 7"));
    }

    #[test]
    fn growth_without_end_is_refused() {
        let series = |step: u64, threads: u64| -> Vec<Look> {
            (0..40).map(|at| Look { anonymous: at * step, threads: 9 + at * threads, files: 20 }).collect()
        };
        assert!(bounded(&series(1000, 0)).is_ok());
        assert!(bounded(&series(1 << 20, 0)).unwrap_err().to_string().contains("memory grew"));
        assert!(bounded(&series(0, 1)).unwrap_err().to_string().contains("threads or open files"));
    }
}
