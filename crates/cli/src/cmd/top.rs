//! `narthex top`: the state of the running servers, again and again.
//!
//! On a terminal, each state replaces the one before, and a key ends the command. Otherwise each state is printed after the
//! one before.

use std::{
    collections::BTreeMap,
    io::{IsTerminal, stdin, stdout},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use console::{Key, Term};
use narthex_gateway::Gateway;
use serde_json::{Value, json};

use crate::{
    args::TopArgs,
    hidden_typing::HiddenTyping,
    interrupt, output, render,
    running_server::{self, ServerState},
};

/// Number of requests that are shown of each server.
const REQUESTS: usize = 8;

/// Time between two looks for a signal.
const WAIT: Duration = Duration::from_millis(100);

/// Shows the state of the running servers until a key or a signal.
pub(crate) fn run(gateway: &Gateway, args: &TopArgs) -> anyhow::Result<()> {
    let is_live = !args.once && !args.json && stdin().is_terminal() && stdout().is_terminal();
    // The thread that reads keys may still wait for one at the end, in another mode of the terminal.
    let _hidden = is_live.then(HiddenTyping::start);
    let keys = is_live.then(keys).transpose()?;
    let mut screen = Screen::default();
    let mut rates = TokenRates { sampled: running_server::sampled_rates(gateway), last: None };

    loop {
        let mut servers = running_server::states(gateway, REQUESTS);
        rates.add(&mut servers, Instant::now());
        if args.json {
            output::line(json!({"servers": servers}))?;
        } else {
            let frame = render::server_states(&servers);
            if is_live { screen.replace(&frame)? } else { output::report(frame)? }
        }
        if args.once || is_ended(keys.as_ref(), Duration::from_secs(args.interval)) {
            return Ok(());
        }
    }
}

/// Waits for the next refresh. Returns true if a key or a signal ends the command before.
fn is_ended(keys: Option<&Receiver<()>>, interval: Duration) -> bool {
    let end = Instant::now() + interval;
    while Instant::now() < end {
        if interrupt::cancel().is_cancelled() {
            return true;
        }
        let wait = WAIT.min(end.saturating_duration_since(Instant::now()));
        match keys.map(|keys| keys.recv_timeout(wait)) {
            Some(Err(RecvTimeoutError::Timeout)) => {}
            Some(Ok(()) | Err(RecvTimeoutError::Disconnected)) => return true,
            None => thread::sleep(wait),
        }
    }
    false
}

/// Starts to read the keys of the terminal. The receiver gets a message at the key that ends the command, or when the
/// terminal cannot be read any more.
fn keys() -> anyhow::Result<Receiver<()>> {
    let (sender, receiver) = channel();
    thread::Builder::new().name("keys".to_owned()).spawn(move || {
        let term = Term::stdout();
        while !matches!(term.read_key(), Ok(Key::Char('q' | 'Q') | Key::Escape) | Err(_)) {}
        // The command may have ended already.
        let _ = sender.send(());
    })?;
    Ok(receiver)
}

/// The part of the terminal that the last state takes.
#[derive(Default)]
struct Screen {
    lines: usize,
}

impl Screen {
    /// Replaces the last state. Lines and rows that the terminal has no room for are left out.
    fn replace(&mut self, frame: &str) -> anyhow::Result<()> {
        let term = Term::stdout();
        let (rows, columns) = term.size();
        let shown = output::without_controls(frame);
        let lines = shown.lines().take(usize::from(rows).saturating_sub(2));
        let lines: Vec<_> =
            lines.map(|line| console::truncate_str(line, usize::from(columns), "…")).collect();
        term.clear_last_lines(self.lines)?;
        for line in &lines {
            term.write_line(line)?;
        }
        term.write_line("q ends")?;
        self.lines = lines.len() + 1;
        Ok(())
    }
}

/// Tokens that each model of a server has generated since it was loaded, by `id@scheme`.
type TokenCounts = BTreeMap<String, u64>;

/// Tokens that the models of the servers had generated at the last state.
struct TokenRates {
    /// Tokens a second of the servers' own last samples, by address.
    sampled: BTreeMap<String, f64>,
    /// Time of the last state, and the counts of the servers that stated them, by address.
    last: Option<(Instant, BTreeMap<String, TokenCounts>)>,
}

impl TokenRates {
    /// Adds the generated tokens a second of each server since the last state; at the first state, those of the server's
    /// own last sample, if it has one.
    fn add(&mut self, servers: &mut [ServerState], now: Instant) {
        let mut counts = BTreeMap::new();
        for server in servers {
            let current = generated(&server.health);
            server.tokens_per_second = match &self.last {
                Some((then, before)) => {
                    current.as_ref().zip(before.get(&server.address)).map(|(current, before)| {
                        let seconds = now.saturating_duration_since(*then).as_secs_f64().max(1e-3);
                        fresh(current, before) as f64 / seconds
                    })
                }
                None => self.sampled.get(&server.address).copied(),
            };
            counts.extend(current.map(|current| (server.address.clone(), current)));
        }
        self.last = Some((now, counts));
    }
}

/// Returns the tokens since a state. The count of a model begins again at each load.
fn fresh(current: &TokenCounts, before: &TokenCounts) -> u64 {
    let fresh = current.iter().map(|(model, &total)| {
        let before = before.get(model).copied().unwrap_or(0);
        total.checked_sub(before).unwrap_or(total)
    });
    fresh.sum()
}

/// Returns the number of tokens that each model of a server has generated; `None` if the server does not list its models.
fn generated(health: &Value) -> Option<TokenCounts> {
    let models = health["models"].as_array()?.iter().filter_map(|model| {
        let name = format!("{}@{}", model["id"].as_str()?, model["scheme"].as_str()?);
        Some((name, model["engine"]["generated_tokens"].as_u64()?))
    });
    Some(models.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(address: &str, models: &[(&str, u64)]) -> ServerState {
        let models = models.iter().map(
            |(id, generated)| json!({"id": id, "scheme": "w8", "engine": {"generated_tokens": generated}}),
        );
        let mut models: Vec<Value> = models.collect();
        models.push(json!({"id": "encoder", "scheme": "w8", "engine": null}));
        ServerState {
            address: address.to_owned(),
            tokens_per_second: None,
            health: json!({"models": models}),
            requests: Vec::new(),
        }
    }

    #[test]
    fn rates_are_those_since_the_last_state() {
        let sampled = [("a".to_owned(), 2.5)].into();
        let mut rates = TokenRates { sampled, last: None };
        let start = Instant::now();
        let mut at = |seconds, servers: &mut [ServerState]| {
            rates.add(servers, start + Duration::from_secs(seconds));
            servers.iter().map(|server| server.tokens_per_second).collect::<Vec<_>>()
        };
        assert_eq!(at(0, &mut [state("a", &[("x", 100)])]), [Some(2.5)]);
        assert_eq!(at(2, &mut [state("a", &[("x", 150)]), state("b", &[("x", 9)])]), [Some(25.0), None]);
        let servers = &mut [state("a", &[("x", 10)]), state("b", &[("x", 11)])];
        assert_eq!(at(4, servers), [Some(5.0), Some(1.0)], "a was loaded again");
        let servers = &mut [state("a", &[("x", 30), ("y", 1000)]), state("b", &[("x", 11)])];
        assert_eq!(at(6, servers), [Some(510.0), Some(0.0)], "a second model was loaded");
        assert_eq!(at(8, &mut [state("a", &[("x", 40)])]), [Some(5.0)], "the second model has left");

        let silent = ServerState { health: Value::Null, ..state("a", &[]) };
        assert_eq!(at(10, &mut [silent]), [None]);
        assert_eq!(at(12, &mut [state("a", &[("x", 50)])]), [None], "the last state has no counts");
    }

    #[test]
    fn a_state_in_json_has_its_rate() {
        let server = ServerState { tokens_per_second: Some(3.0), ..state("a", &[("x", 1)]) };
        let found = json!({"servers": [server]});
        assert_eq!(found["servers"][0]["tokens_per_second"], 3.0);
        assert_eq!(found["servers"][0]["health"], server.health);
    }
}
